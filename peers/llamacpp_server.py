"""Serve a GGUF file with llama.cpp's own server, from its Python package.

pip install xllamacpp
python llamacpp_server.py MODEL.gguf --port 8801
"""

import argparse
import threading

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8801)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8, help="requests at a time; each has a cache of its own")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a slot")
    chosen = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = chosen.model
    params.hostnames, params.port = ["127.0.0.1"], chosen.port
    params.n_parallel, params.n_ctx = chosen.slots, chosen.slots * chosen.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = chosen.threads
    server = xllamacpp.Server(params)
    print(f"Serving {server.listening_address}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

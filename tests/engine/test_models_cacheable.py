"""What can't be cached exactly is told from a model's class and settings; what can is not refused.

Method: Transformers' own settings of each family, shrunk to a few layers where the family allows it; no weights.
"""

import pytest
import transformers

from anaphora.engine.models.cacheable import why_not_cacheable

REFUSED = {
    "T5ForConditionalGeneration": (transformers.T5Config(), "encoder"),
    "MambaForCausalLM": (transformers.MambaConfig(num_hidden_layers=2), "running state"),
    "RwkvForCausalLM": (transformers.RwkvConfig(num_hidden_layers=2), "running state"),
    "JambaForCausalLM": (transformers.JambaConfig(num_hidden_layers=8), "running state"),
    "Qwen3NextForCausalLM": (transformers.Qwen3NextConfig(num_hidden_layers=4), "running state"),
    "BloomForCausalLM": (transformers.BloomConfig(n_layer=2), "ALiBi"),
    "MptForCausalLM": (transformers.MptConfig(n_layers=2), "ALiBi"),
    "FalconForCausalLM": (transformers.FalconConfig(num_hidden_layers=2, alibi=True), "ALiBi"),
    "Llama4ForCausalLM": (transformers.Llama4TextConfig(num_hidden_layers=4), "fixed chunks"),
    "DeepseekV3ForCausalLM": (transformers.DeepseekV3Config(num_hidden_layers=2), "latent attention"),
    "Gemma3nForCausalLM": (transformers.Gemma3nTextConfig(), "other layers"),
    "GPTNeoForCausalLM": (transformers.GPTNeoConfig(), "can't be exchanged"),
}

SERVED = {
    "LlamaForCausalLM": transformers.LlamaConfig(num_hidden_layers=2),
    "GPT2LMHeadModel": transformers.GPT2Config(n_layer=2),
    "Qwen3ForCausalLM": transformers.Qwen3Config(num_hidden_layers=2),
    "MistralForCausalLM": transformers.MistralConfig(num_hidden_layers=2, sliding_window=16),
    "Phi3ForCausalLM": transformers.Phi3Config(num_hidden_layers=2),
    "Gemma2ForCausalLM": transformers.Gemma2Config(num_hidden_layers=2),  # capped logits
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig(num_hidden_layers=2),
    "GptOssForCausalLM": transformers.GptOssConfig(num_hidden_layers=2),  # attention sinks
    "GPTNeoXForCausalLM": transformers.GPTNeoXConfig(num_hidden_layers=2),
    "OPTForCausalLM": transformers.OPTConfig(num_hidden_layers=2),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_model_is_refused_with_its_reason_in_a_sentence(architecture: str) -> None:
    config, words = REFUSED[architecture]
    reason = why_not_cacheable(getattr(transformers, architecture), config)
    assert reason is not None
    assert reason.startswith(f"{architecture} can't be cached exactly because ")
    assert words in reason
    assert reason.endswith("; it is served without reuse")


@pytest.mark.parametrize("architecture", SERVED)
def test_model_is_not_refused(architecture: str) -> None:
    assert why_not_cacheable(getattr(transformers, architecture), SERVED[architecture]) is None

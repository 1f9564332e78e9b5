"""The HTTP door: two wire protocols translated to and from one neutral form, and the server that speaks them."""

"""Import and export of networks: ONNX models, and weights of PyTorch."""

//! GGUF container, tensor types and block formats.

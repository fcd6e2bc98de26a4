//! Kernels: WGSL and their CPU references.

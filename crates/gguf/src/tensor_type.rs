//! Tensor types: numbers, names and block sizes (`enum ggml_type` in `ggml/include/ggml.h`).

use std::fmt;

/// Element type of a tensor.
///
/// Every type whose block size is known is listed, so that a tensor nobody reads can be stepped
/// over. [`TensorType::is_supported`] tells which ones can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "these are the format's own names")]
#[expect(missing_docs, reason = "the variants are named after the format's types")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    /// One bit per weight, 128 weights in 18 bytes.
    Q1_0,
    /// Two bits per weight behind one scale. Two incompatible layouts share the number 42 and are
    /// told apart by the offsets of the whole file: `group` is 64 (18 bytes) or 128 (34 bytes).
    Q2_0 {
        /// Weights per block, 64 or 128.
        group: u32,
    },
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    TQ1_0,
    TQ2_0,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

/// Names of the types that can be decoded, as shown in error messages.
pub const SUPPORTED_TYPES: &str = "F32, F16, BF16, Q1_0, Q2_0, Q4_0, Q8_0, Q4_K, Q6_K";

/// Number of the type whose layout depends on the file.
pub(crate) const Q2_0_ID: u32 = 42;

/// All types with one layout.
const ALL: [TensorType; 33] = {
    use TensorType::*;
    [
        F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS,
        IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, I8, I16, I32, I64, F64, IQ1_M, BF16, TQ1_0, TQ2_0,
        MXFP4, Q1_0,
    ]
};

impl TensorType {
    /// The type with this number, or `None` if the number is unknown or is 42, whose layout
    /// depends on the file.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The number that stands for this type in a file.
    #[must_use]
    pub fn id(self) -> u32 {
        self.row().0
    }

    /// The format's name for this type; both layouts of type 42 are `Q2_0`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Weights per block.
    #[must_use]
    pub fn block_len(self) -> u32 {
        self.row().2
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_bytes(self) -> u32 {
        self.row().3
    }

    /// Whether [`dequantize`](crate::dequantize) can decode this type.
    #[must_use]
    pub fn is_supported(self) -> bool {
        use TensorType::*;
        matches!(self, F32 | F16 | BF16 | Q1_0 | Q2_0 { group: 64 | 128 } | Q4_0 | Q8_0 | Q4_K | Q6_K)
    }

    /// Number, name, weights per block, bytes per block.
    fn row(self) -> (u32, &'static str, u32, u32) {
        use TensorType::*;
        match self {
            F32 => (0, "F32", 1, 4),
            F16 => (1, "F16", 1, 2),
            Q4_0 => (2, "Q4_0", 32, 18),
            Q4_1 => (3, "Q4_1", 32, 20),
            Q5_0 => (6, "Q5_0", 32, 22),
            Q5_1 => (7, "Q5_1", 32, 24),
            Q8_0 => (8, "Q8_0", 32, 34),
            Q8_1 => (9, "Q8_1", 32, 36),
            Q2_K => (10, "Q2_K", 256, 84),
            Q3_K => (11, "Q3_K", 256, 110),
            Q4_K => (12, "Q4_K", 256, 144),
            Q5_K => (13, "Q5_K", 256, 176),
            Q6_K => (14, "Q6_K", 256, 210),
            Q8_K => (15, "Q8_K", 256, 292),
            IQ2_XXS => (16, "IQ2_XXS", 256, 66),
            IQ2_XS => (17, "IQ2_XS", 256, 74),
            IQ3_XXS => (18, "IQ3_XXS", 256, 98),
            IQ1_S => (19, "IQ1_S", 256, 50),
            IQ4_NL => (20, "IQ4_NL", 32, 18),
            IQ3_S => (21, "IQ3_S", 256, 110),
            IQ2_S => (22, "IQ2_S", 256, 82),
            IQ4_XS => (23, "IQ4_XS", 256, 136),
            I8 => (24, "I8", 1, 1),
            I16 => (25, "I16", 1, 2),
            I32 => (26, "I32", 1, 4),
            I64 => (27, "I64", 1, 8),
            F64 => (28, "F64", 1, 8),
            IQ1_M => (29, "IQ1_M", 256, 56),
            BF16 => (30, "BF16", 1, 2),
            TQ1_0 => (34, "TQ1_0", 256, 54),
            TQ2_0 => (35, "TQ2_0", 256, 66),
            MXFP4 => (39, "MXFP4", 32, 17),
            Q1_0 => (41, "Q1_0", 128, 18),
            // A half as the scale, then two bits per weight.
            Q2_0 { group } => (Q2_0_ID, "Q2_0", group, 2 + group / 4),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Q2_0 { group } => write!(f, "Q2_0 (groups of {group})"),
            other => f.write_str(other.name()),
        }
    }
}

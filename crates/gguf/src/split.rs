//! Models that are split over several files.
//!
//! The parts of a model are `<prefix>-00001-of-00004.gguf` and so on. Part 0 holds the model's
//! metadata; each part has its own tensor list and data section, and its offsets count from its
//! own data start. `split.no` counts from zero, the file names from one.

use crate::{GgufError, Header, Metadata, Result};

/// The most parts that five digits can number.
pub const MAX_PARTS: u32 = 99_999;

/// What a part says about the model it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitInfo {
    /// Number of this part, counted from zero.
    pub index: u32,
    /// Number of parts.
    pub count: u32,
    /// Number of tensors in all parts, if stated.
    pub n_tensors: Option<u32>,
}

impl SplitInfo {
    /// Reads the `split.*` keys; `None` if the file is a whole model.
    ///
    /// # Errors
    /// A key of the wrong type, `split.no` missing, or more parts than file names can number.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<Self>> {
        match metadata.get_u32("split.count")? {
            None | Some(0 | 1) => Ok(None),
            Some(count) if count > MAX_PARTS => Err(GgufError::TooManyParts { count, most: MAX_PARTS }),
            Some(count) => Ok(Some(Self {
                index: metadata.require_u32("split.no")?,
                count,
                n_tensors: metadata.get_u32("split.tensors.count")?,
            })),
        }
    }
}

/// File name of a part; `index` counts from zero.
#[must_use]
pub fn part_name(prefix: &str, index: u32, count: u32) -> String {
    format!("{prefix}-{:05}-of-{count:05}.gguf", u64::from(index) + 1)
}

/// Takes a part's file name apart: prefix, index from zero, number of parts.
///
/// The prefix keeps any directory or address in front of the name.
#[must_use]
pub fn parse_part_name(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let five_digits = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| is_number)
    };
    let (number, count) = (five_digits(number)?, five_digits(count)?);
    (1..=count).contains(&number).then(|| (prefix, number - 1, count))
}

/// Checks that `parts`, in order, are the whole model.
///
/// A single file that is not split is a whole model too.
///
/// # Errors
/// Missing, surplus or exchanged parts, a tensor that occurs twice, a wrong number of tensors.
pub fn check_parts(parts: &[Header]) -> Result<()> {
    let Some(first) = parts.first() else { return Err(GgufError::NoParts) };
    let given = parts.len() as u64;
    let Some(split) = SplitInfo::from_metadata(&first.metadata)? else {
        return if given == 1 { Ok(()) } else { Err(GgufError::WrongPartCount { declared: 1, given }) };
    };
    // The order of these checks decides which of two faults is named: a later part in first
    // place is told as such, rather than as a missing part.
    if split.index != 0 {
        return Err(GgufError::WrongPartNumber { index: 0, found: split.index });
    }
    if u64::from(split.count) != given {
        return Err(GgufError::WrongPartCount { declared: split.count, given });
    }
    for (index, part) in (0u64..).zip(parts) {
        let (count, number) = match SplitInfo::from_metadata(&part.metadata)? {
            Some(info) => (info.count, info.index),
            None => (1, 0),
        };
        if count != split.count {
            return Err(GgufError::PartCountDiffers { index, found: count, expected: split.count });
        }
        if u64::from(number) != index {
            return Err(GgufError::WrongPartNumber { index, found: number });
        }
    }
    let mut names: Vec<&str> = parts.iter().flat_map(|part| &part.tensors).map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[first, second]| first == second) {
        return Err(GgufError::DuplicateTensor { tensor: (*name).into() });
    }
    let found = names.len() as u64;
    match split.n_tensors {
        Some(expected) if u64::from(expected) != found => {
            Err(GgufError::WrongTensorCount { found, expected: expected.into() })
        }
        _ => Ok(()),
    }
}

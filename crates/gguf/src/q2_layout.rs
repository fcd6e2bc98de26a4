//! Tells apart the two layouts that share type number 42.
//!
//! One stores 64 values in 18 bytes, the other 128 values in 34 bytes; nothing in the header says
//! which. Writers place tensors one after the other in list order, each padded to the alignment,
//! so the layout is the one whose sizes reproduce every offset. Only the size of the file can
//! decide about a last tensor.

use crate::header::{Place, RawTensor};
use crate::tensor_type::{Q2_0_ID, TensorType};
use crate::{GgufError, Metadata, Q2Fit, Result, Value};

/// Keys by which one converter marks a third layout under the same number (128 values, scale
/// last). Offsets cannot tell it from the scale-first one.
const FOREIGN_MARKS: [&str; 2] = ["general.quantization_version", "oxibonsai.quant_format"];

/// The type with this number, given the group size that was decided for type 42.
pub(crate) fn resolve(type_id: u32, q2_group: Option<u32>) -> Option<TensorType> {
    if type_id == Q2_0_ID {
        q2_group.map(|group| TensorType::Q2_0 { group })
    } else {
        TensorType::from_id(type_id)
    }
}

/// The group size of the file's tensors of type 42, or `None` if it has none.
pub(crate) fn decide(metadata: &Metadata, tensors: &[RawTensor], place: &Place) -> Result<Option<u32>> {
    let Some(first) = tensors.iter().find(|tensor| tensor.type_id == Q2_0_ID) else { return Ok(None) };
    for key in FOREIGN_MARKS {
        if let Some(Value::String(mark)) = metadata.get(key) {
            return Err(GgufError::ForeignQ2Layout { tensor: first.name.clone(), key, mark: mark.clone() });
        }
    }
    let undecided = |fit| Err(GgufError::UndecidedQ2Layout { tensor: first.name.clone(), fit });
    let end_of = |group| replay(tensors, group, place);
    let (group, end) = match (end_of(64), end_of(128)) {
        (None, None) => return undecided(Q2Fit::Neither),
        (Some(end), None) => (64, end),
        (None, Some(end)) => (128, end),
        (Some(end_64), Some(end_128)) => {
            let Some(file_bytes) = place.file_bytes else { return undecided(Q2Fit::BothWithoutFileSize) };
            // Some writers pad the last tensor, some do not.
            let ends_here = |end: u64| {
                file_bytes == end || Some(file_bytes) == end.checked_next_multiple_of(place.alignment)
            };
            match (ends_here(end_64), ends_here(end_128)) {
                (true, false) => (64, end_64),
                (false, true) => (128, end_128),
                (true, true) => return undecided(Q2Fit::Both),
                (false, false) => return undecided(Q2Fit::Neither),
            }
        }
    };
    match place.file_bytes {
        Some(file_bytes) if end > file_bytes => {
            let tensor = tensors.last().map_or_else(String::new, |tensor| tensor.name.clone());
            Err(GgufError::OutOfFile { tensor, end, file_bytes })
        }
        _ => Ok(Some(group)),
    }
}

/// Replays the placement of all tensors with one group size; gives the end of the last tensor in
/// the file, or `None` if an offset disagrees.
fn replay(tensors: &[RawTensor], group: u32, place: &Place) -> Option<u64> {
    let mut expected = 0u64;
    let mut end = 0u64;
    for tensor in tensors {
        if tensor.offset != expected {
            return None;
        }
        let ty = resolve(tensor.type_id, Some(group))?;
        end = expected.checked_add(tensor.n_bytes(ty, place.address_limit).ok()?)?;
        expected = end.checked_next_multiple_of(place.alignment)?;
    }
    place.data_start.checked_add(end)
}

//! First half of greedy sampling: each workgroup finds the largest of its share of the logits.
//!
//! Row `g` of `partials` holds, for the logits `i < n_valid` with `i / 64 % groups = g`:
//! the [`order_key`] of the largest, its token id (the smallest id of equals), the key of the
//! smallest logit, and how many logits were not finite; those take no part in the comparison. A
//! share without finite logits has the keys 0 and `u32::MAX`, which no finite float has.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Words per row of `partials`.
pub const PARTIAL_COLS: u32 = 4;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    n_valid: u32,
    groups: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "argmax_partial",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("argmax_partial.wgsl"),
    ],
    bindings: &[Binding::read("logits"), Binding::write_u32("partials")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::argmax_partial,
    fast: Some(|args, _| fast::argmax_partial(args)),
    cases: cases::cases,
};

/// Shares `logits` [1, V] out among the rows of `partials` [groups, 4] (u32).
///
/// Only the first `n_valid` logits are looked at: rows of the vocabulary matrix beyond the
/// tokenizer's ids are padding.
pub fn argmax_partial(logits: Tensor, partials: Tensor, n_valid: u32) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    expect_shape(name, "logits", logits, 1, logits.cols)?;
    expect_shape(name, "partials", partials, partials.rows, PARTIAL_COLS)?;
    require(name, "groups", partials.rows, partials.rows > 0, "at least 1")?;
    let fits = n_valid > 0 && n_valid <= logits.cols;
    require(name, "n_valid", n_valid, fits, "at least 1 and at most the number of logits")?;
    let workgroups = Workgroups::linear(name, u64::from(partials.rows))?;
    let params = Params { n_valid, groups: partials.rows, padding: [0; 2] };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[logits, partials], workgroups);
    dispatch.bytes_read = Tensor { cols: n_valid, ..logits }.n_bytes();
    Ok(dispatch)
}

/// A key that compares as the finite float with these bits does; both zeros have the same key.
pub(crate) fn order_key(bits: u32) -> u32 {
    match bits {
        0x8000_0000 => 0x8000_0000,
        _ if bits > 0x8000_0000 => !bits,
        _ => bits ^ 0x8000_0000,
    }
}

/// The float of a key.
pub(crate) fn key_value(key: u32) -> f32 {
    f32::from_bits(if key >= 0x8000_0000 { key ^ 0x8000_0000 } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_the_floats() {
        let ascending = [f32::MIN, -1e4, -1.0, -1e-40, 0.0, 1e-40, 1.0, 1e4, f32::MAX];
        let keys = ascending.map(|v| order_key(v.to_bits()));
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:x?}");
        assert!(keys[0] > 0 && keys[8] < u32::MAX);
        for (key, value) in keys.into_iter().zip(ascending) {
            assert_eq!(key_value(key), value);
        }
        assert_eq!(order_key((-0.0f32).to_bits()), order_key(0));
    }
}

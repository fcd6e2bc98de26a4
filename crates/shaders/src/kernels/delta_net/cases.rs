//! Cases of the kernel: the steps of `delta_chunk`'s cases, with what that kernel makes of them.

use super::delta_net;
use crate::case::{Case, CaseBuilder, Tolerance, run_reference};
use crate::kernel::ShapeError;
use crate::kernels::delta_chunk::cases::{Buffers, specs};
use crate::kernels::delta_chunk::delta_chunk;

/// Values are below 1 and keys have length 1; what a state of up to 128 rows below 1 returns for one
/// is below 7. A chunk rounds a sum of at most 128 products (a random walk of 11 * 2^-24 of numbers
/// below 7, 5e-6), which the sums of at most 32 products that follow pass on. What remains of it in
/// the state adds up over chunks by less than the state lasts: two chunks where softplus is small.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 5e-6 };

/// The cases.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, spec) in specs().into_iter().enumerate() {
        let mut c = CaseBuilder::new(1000 + i as u32);
        let Buffers { y, gates, chunks } = spec.build(&mut c);
        let before = c.finish(spec.name(), delta_chunk(y, gates, chunks, spec.shape), TOLERANCE)?;
        let (buffers, _) = run_reference(&before);

        let mut c = CaseBuilder::new(1100 + i as u32);
        c.state = before.state;
        for words in buffers {
            let n = words.len() as u32;
            c.words(1, n, words);
        }
        let shape = spec.shape;
        let s = c.random(shape.num_value_heads * shape.key_head_dim, shape.value_head_dim, 1.0);
        let out = c.output(spec.rows, shape.num_value_heads * shape.value_head_dim);
        cases.push(c.finish(spec.name(), delta_net(y, chunks, s, out, shape), TOLERANCE)?);
    }
    Ok(cases)
}

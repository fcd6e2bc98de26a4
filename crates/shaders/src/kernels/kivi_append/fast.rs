use super::reference::append;
use crate::kernel::Args;
use crate::kernels::qkv::norm_rope_f32;

pub(super) fn kivi_append(args: &mut Args<'_>) {
    append(args, norm_rope_f32);
}

use super::Params;
use crate::kernel::Args;
use crate::sampling::{MAX_MATCH, Settings, has_id};

pub(super) fn sample_dry(args: &mut Args<'_>) {
    let p: Params = args.params();
    let words = args.read_u32(0);
    let settings = Settings::of(words);
    if args.state.n_tokens == 0 || settings.has_dry == 0 {
        return;
    }
    let end = (args.state.position + args.state.n_tokens).min(p.context) as usize;
    let start = end - (settings.dry_last_n as usize).min(end);
    let ledger = &args.read_u32(1)[p.ledger as usize..][..end];
    let repeats = args.write_u32(0);
    for position in start.max(settings.first_generated as usize) + 1..end {
        let mut length = 0;
        while length < MAX_MATCH as usize && position - length > start {
            let token = ledger[end - 1 - length];
            if token != ledger[position - 1 - length] || has_id(words, p.breakers, token) {
                break;
            }
            length += 1;
        }
        let longest = &mut repeats[ledger[position] as usize];
        *longest = (*longest).max(length as u32);
    }
}

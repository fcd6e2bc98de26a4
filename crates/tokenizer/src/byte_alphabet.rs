//! The byte alphabet: how vocabulary files spell arbitrary bytes as printable characters.
//!
//! GPT-2's `bytes_to_unicode`: the 188 printable Latin-1 bytes stand for themselves, the other 68
//! become U+0100, U+0101, ... in ascending order.

const N_SHIFTED: usize = 68;
const N_CODE_POINTS: usize = 0x100 + N_SHIFTED;

/// `CODE_POINT_TO_BYTE[c]` is the byte that code point `c` stands for.
const CODE_POINT_TO_BYTE: [Option<u8>; N_CODE_POINTS] = {
    let mut table = [None; N_CODE_POINTS];
    let mut shifted = 0x100;
    let mut byte = 0;
    while byte < 0x100 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code_point = if printable { byte } else { shifted };
        if !printable {
            shifted += 1;
        }
        table[code_point] = Some(byte as u8);
        byte += 1;
    }
    table
};

/// The byte a vocabulary character stands for.
pub(crate) fn byte_of(character: char) -> Option<u8> {
    CODE_POINT_TO_BYTE.get(u32::from(character) as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters() {
        let cases = [
            ('\u{0120}', Some(b' ')),
            ('\u{010A}', Some(b'\n')),
            ('\u{0100}', Some(0x00)),
            ('\u{0121}', Some(0x7F)),
            ('\u{0142}', Some(0xA0)),
            ('\u{0143}', Some(0xAD)),
            ('!', Some(b'!')),
            ('~', Some(b'~')),
            ('\u{A1}', Some(0xA1)),
            ('\u{FF}', Some(0xFF)),
            (' ', None),
            ('\n', None),
            ('\u{7F}', None),
            ('\u{AD}', None),
            ('\u{0144}', None),
            ('\u{1F600}', None),
        ];
        for (character, byte) in cases {
            assert_eq!(byte_of(character), byte, "{character:?}");
        }
    }

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for byte in (0..=0x200u32).filter_map(char::from_u32).filter_map(byte_of) {
            seen[usize::from(byte)] += 1;
        }
        assert_eq!(seen, [1; 256]);
    }
}

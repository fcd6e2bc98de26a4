//! Reads the header from a prefix of the file.

use crate::{GgufError, MAX_HEADER_BYTES};

/// Why reading stopped before the header was complete.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The prefix ends inside the header; this many bytes from the start of the file are needed.
    NeedMore(u64),
    /// The file is wrong.
    Invalid(GgufError),
}

impl From<GgufError> for Stop {
    fn from(error: GgufError) -> Self {
        Self::Invalid(error)
    }
}

/// A read position in a prefix of a file.
///
/// `take` separates three cases: the bytes are here, they may still come, they can never come.
pub(crate) struct Cursor<'a> {
    prefix: &'a [u8],
    position: usize,
    file_bytes: Option<u64>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(prefix: &'a [u8], file_bytes: Option<u64>) -> Self {
        Self { prefix, position: 0, file_bytes }
    }

    /// Bytes consumed so far.
    pub(crate) fn position(&self) -> u64 {
        self.position as u64
    }

    /// Bytes of the prefix that are not consumed.
    pub(crate) fn available(&self) -> usize {
        self.prefix.len() - self.position
    }

    /// Fails if `n_bytes` more bytes cannot follow in this file; says nothing about the prefix.
    pub(crate) fn can_follow(&self, n_bytes: u64, what: &'static str) -> Result<u64, GgufError> {
        let needed = self.position().saturating_add(n_bytes);
        if let Some(file_bytes) = self.file_bytes
            && needed > file_bytes
        {
            return Err(GgufError::Truncated { what, needed, file_bytes });
        }
        if needed > MAX_HEADER_BYTES {
            return Err(GgufError::HeaderTooLarge { what, needed, limit: MAX_HEADER_BYTES });
        }
        Ok(needed)
    }

    pub(crate) fn take(&mut self, n_bytes: u64, what: &'static str) -> Result<&'a [u8], Stop> {
        let end = self.can_follow(n_bytes, what)?;
        let start = self.position;
        // `end` is at most MAX_HEADER_BYTES, which fits every usize this crate is built for.
        match self.prefix.get(start..end as usize) {
            Some(bytes) => {
                self.position = end as usize;
                Ok(bytes)
            }
            None => Err(Stop::NeedMore(end)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Stop> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, Stop> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }

    /// A length-prefixed UTF-8 string.
    pub(crate) fn str(&mut self, what: &'static str) -> Result<&'a str, Stop> {
        let n_bytes = self.u64(what)?;
        let position = self.position();
        let bytes = self.take(n_bytes, what)?;
        str::from_utf8(bytes).map_err(|_| GgufError::InvalidUtf8 { what, position }.into())
    }
}

//! `content-encoding: deflate`. It means zlib, but some servers send a bare deflate stream; the first byte tells.

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::undecodable::Undecodable;

/// Output produced per step.
const STEP: usize = 32 * 1024;

#[derive(Default)]
pub(super) struct DeflateDecoder {
    stream: Option<Decompress>,
    done: bool,
}

impl DeflateDecoder {
    pub(super) fn push(&mut self, piece: &[u8], allowance: usize) -> Result<Bytes, Undecodable> {
        let Some(&first) = piece.first() else {
            return Ok(Bytes::new());
        };
        // RFC 1950: the method 8 with a window of at most 32 KiB. A bare stream with this first byte would be a
        // stored block with a bit set that encoders leave at 0.
        let is_zlib = first & 0x0f == 8 && first >> 4 <= 7;
        let stream = self.stream.get_or_insert_with(|| Decompress::new(is_zlib));
        let mut output = Vec::new();
        let mut rest = piece;
        while !self.done {
            output.reserve(STEP);
            let (total_in, total_out) = (stream.total_in(), stream.total_out());
            let status = stream
                .decompress_vec(rest, &mut output, FlushDecompress::None)
                .map_err(|_| Undecodable)?;
            let consumed =
                usize::try_from(stream.total_in() - total_in).map_err(|_| Undecodable)?;
            rest = rest.get(consumed..).unwrap_or_default();
            self.done = matches!(status, Status::StreamEnd);
            if output.len() > allowance {
                return Err(Undecodable);
            }
            if consumed == 0 && stream.total_out() == total_out {
                break;
            }
        }
        Ok(output.into())
    }

    pub(super) fn finish(&self) -> Result<Bytes, Undecodable> {
        if self.done {
            Ok(Bytes::new())
        } else {
            Err(Undecodable)
        }
    }
}

//! Zstandard, block by block. `ruzstd` decodes everything it is given at once, so it is given one block at a time (at
//! most 128 KiB of output), and its output is taken before the next.

use bytes::{Buf as _, Bytes, BytesMut};
use ruzstd::decoding::FrameDecoder;

use super::undecodable::Undecodable;

const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// RFC 8878, 3.1.1.1.2: the window that a decoder should support, and beyond which it may refuse. RFC 9659 makes it
/// the limit for `content-encoding: zstd`.
const MAX_WINDOW: u64 = 8 * 1024 * 1024;
const BLOCK_HEADER: usize = 3;

#[derive(Default)]
pub(super) struct ZstdDecoder {
    frame: FrameDecoder,
    pending: BytesMut,
    /// The frame's header has been read. Whether it announces a checksum behind the last block.
    started: Option<Header>,
    done: bool,
}

#[derive(Clone, Copy)]
struct Header {
    length: usize,
    checksum: usize,
}

impl ZstdDecoder {
    pub(super) fn push(&mut self, piece: &[u8], allowance: usize) -> Result<Bytes, Undecodable> {
        self.pending.extend_from_slice(piece);
        let mut output = Vec::new();
        while let Some(next) = self.next_whole()? {
            let source = self.pending.get(..next.length).ok_or(Undecodable)?;
            let (_, written) = self
                .frame
                .decode_from_to(source, &mut [])
                .map_err(|_| Undecodable)?;
            debug_assert_eq!(written, 0, "nothing fits an empty target");
            self.pending.advance(next.length);
            self.started = Some(Header {
                length: 0,
                ..next.header
            });
            self.done = next.last;
            if output.len().saturating_add(self.frame.can_collect()) > allowance {
                return Err(Undecodable);
            }
            self.frame.collect_to_writer(&mut output)?;
        }
        Ok(output.into())
    }

    pub(super) fn finish(&mut self) -> Result<Bytes, Undecodable> {
        if self.done {
            Ok(Bytes::new())
        } else {
            Err(Undecodable)
        }
    }

    /// The next block, once it is complete: with the frame's header before the first one, and its checksum behind the
    /// last.
    fn next_whole(&self) -> Result<Option<Whole>, Undecodable> {
        if self.done {
            // A second frame is not read.
            return if self.pending.is_empty() {
                Ok(None)
            } else {
                Err(Undecodable)
            };
        }
        let header = match self.started {
            Some(header) => header,
            None => match frame_header(&self.pending)? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        let body = header.length + BLOCK_HEADER;
        let Some(&[a, b, c]) = self.pending.get(header.length..body) else {
            return Ok(None);
        };
        let bits = u32::from_le_bytes([a, b, c, 0]);
        let is_rle = (bits >> 1) & 3 == 1;
        let content = if is_rle { 1 } else { (bits >> 3) as usize };
        let last = bits & 1 == 1;
        let length = body + content + if last { header.checksum } else { 0 };
        Ok((self.pending.len() >= length).then_some(Whole {
            length,
            last,
            header,
        }))
    }
}

struct Whole {
    length: usize,
    last: bool,
    header: Header,
}

/// The frame's header, once it is complete. Refuses windows over the limit before the decoder allocates one, and
/// dictionaries.
fn frame_header(bytes: &[u8]) -> Result<Option<Header>, Undecodable> {
    let magic_len = bytes.len().min(MAGIC.len());
    if bytes.get(..magic_len) != MAGIC.get(..magic_len) {
        return Err(Undecodable);
    }
    let (Some(&descriptor), Some(&window)) = (bytes.get(4), bytes.get(5)) else {
        return Ok(None);
    };
    let single_segment = descriptor & 0x20 != 0;
    let dictionary = descriptor & 3 != 0;
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    if dictionary {
        return Err(Undecodable);
    }
    let fixed = 5 + usize::from(!single_segment);
    let length = fixed + size_bytes;
    let Some(size) = bytes.get(fixed..length) else {
        return Ok(None);
    };
    let window = if single_segment {
        let mut wide = [0; 8];
        wide.iter_mut().zip(size).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(wide)
    } else {
        let base = 1u64 << (10 + (window >> 3));
        base + (base >> 3) * u64::from(window & 7)
    };
    if window > MAX_WINDOW {
        return Err(Undecodable);
    }
    Ok(Some(Header {
        length,
        checksum: if descriptor & 4 != 0 { 4 } else { 0 },
    }))
}

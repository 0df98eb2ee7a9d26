//! Decodes a compressed response while it arrives.
//!
//! The copy that Diarist reads is limited in output and ratio, so that a small response cannot fill the memory; if
//! in doubt, decoding stops and the capture is incomplete. A stream that goes on to the client in plain bytes
//! ([`super::decoded_stream`]) is only limited piece by piece, because nothing of it is kept. Called by the tee's
//! reader, by that stream, and for the bodies of refusals.

pub use self::undecodable::Undecodable;
use std::io::{self, Write};

use bytes::Bytes;
use http::HeaderValue;

mod deflate;
mod undecodable;
mod zstd;

/// The most that is decoded of a body; no answer worth reading is longer.
const MAX_DECODED: u64 = 64 * 1024 * 1024;
/// Output that is allowed at any ratio: short answers compress very well.
const RATIO_EXEMPT: u64 = 1024 * 1024;
/// Text of models compresses 3 to 30 times, their event streams up to about 100 times; the maximum of deflate is
/// 1,032.
const MAX_RATIO: u64 = 200;
/// The most that one piece of a stream may become on its way to the client.
const MAX_PIECE_BYTES: usize = 16 * 1024 * 1024;

/// The coding that `content-encoding` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
    /// Several codings on top of each other, or an unsupported one.
    Other,
}

impl Encoding {
    /// Reads the header's value. No header means no coding.
    #[must_use]
    pub fn from_header(header: Option<&HeaderValue>) -> Self {
        let Some(header) = header else {
            return Self::Identity;
        };
        match header
            .as_bytes()
            .trim_ascii()
            .to_ascii_lowercase()
            .as_slice()
        {
            b"" | b"identity" => Self::Identity,
            b"gzip" | b"x-gzip" => Self::Gzip,
            b"deflate" => Self::Deflate,
            b"br" => Self::Brotli,
            b"zstd" => Self::Zstd,
            _ => Self::Other,
        }
    }
}

/// Decodes one body, piece by piece.
pub struct Decoder {
    codec: Codec,
    bytes_in: u64,
    bytes_out: u64,
    /// Nothing is kept, so each piece has its own limit.
    passing: bool,
}

enum Codec {
    Identity,
    Gzip(Box<flate2::write::MultiGzDecoder<Sink>>),
    Deflate(deflate::DeflateDecoder),
    Brotli(Box<brotli_decompressor::DecompressorWriter<Sink>>),
    Zstd(Box<zstd::ZstdDecoder>),
    Other,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("taken", &self.bytes_in)
            .field("given", &self.bytes_out)
            .finish_non_exhaustive()
    }
}

impl Decoder {
    #[must_use]
    pub fn new(encoding: Encoding) -> Self {
        let codec = match encoding {
            Encoding::Identity => Codec::Identity,
            Encoding::Gzip => Codec::Gzip(Box::new(flate2::write::MultiGzDecoder::new(
                Sink::default(),
            ))),
            Encoding::Deflate => Codec::Deflate(deflate::DeflateDecoder::default()),
            Encoding::Brotli => Codec::Brotli(Box::new(
                brotli_decompressor::DecompressorWriter::new(Sink::default(), 4096),
            )),
            Encoding::Zstd => Codec::Zstd(Box::default()),
            Encoding::Other => Codec::Other,
        };
        Self {
            codec,
            bytes_in: 0,
            bytes_out: 0,
            passing: false,
        }
    }

    /// A decoder for a stream of any length, whose pieces go on as they are decoded.
    #[must_use]
    pub fn for_stream(encoding: Encoding) -> Self {
        Self {
            passing: true,
            ..Self::new(encoding)
        }
    }

    /// The decoded bytes of the next piece. A codec may hold some of them back.
    ///
    /// # Errors
    ///
    /// If the piece is broken, too large, or in an unsupported coding. Nothing after it can be decoded either.
    pub fn push(&mut self, piece: Bytes) -> Result<Bytes, Undecodable> {
        self.bytes_in = self.bytes_in.saturating_add(piece.len() as u64);
        let allowance = self.allowance();
        let decoded = match &mut self.codec {
            Codec::Identity => return Ok(piece),
            Codec::Deflate(codec) => codec.push(&piece, allowance)?,
            Codec::Gzip(codec) => decode_with(codec.as_mut(), |c| c.get_mut(), &piece, allowance)?,
            Codec::Brotli(codec) => {
                decode_with(codec.as_mut(), |c| c.get_mut(), &piece, allowance)?
            }
            Codec::Zstd(codec) => codec.push(&piece, allowance)?,
            Codec::Other => return Err(Undecodable),
        };
        self.bytes_out = self.bytes_out.saturating_add(decoded.len() as u64);
        Ok(decoded)
    }

    /// The bytes that the codec held back until the end of the body.
    ///
    /// # Errors
    ///
    /// If the body ended in the middle of its coding.
    pub fn finish(&mut self) -> Result<Bytes, Undecodable> {
        let allowance = self.allowance();
        match &mut self.codec {
            Codec::Identity => Ok(Bytes::new()),
            // An empty body is a complete answer of no bytes (to HEAD, for example).
            _ if self.bytes_in == 0 => Ok(Bytes::new()),
            Codec::Gzip(codec) => {
                codec.get_mut().allowance = allowance;
                codec.try_finish()?;
                Ok(codec.get_mut().take())
            }
            Codec::Brotli(codec) => {
                codec.get_mut().allowance = allowance;
                codec.close()?;
                Ok(codec.get_mut().take())
            }
            Codec::Deflate(codec) => codec.finish(),
            Codec::Zstd(codec) => codec.finish(),
            Codec::Other => Err(Undecodable),
        }
    }

    /// How many bytes may still be decoded, given how many were read.
    fn allowance(&self) -> usize {
        if self.passing {
            return MAX_PIECE_BYTES;
        }
        let by_ratio = RATIO_EXEMPT.max(self.bytes_in.saturating_mul(MAX_RATIO));
        let left = by_ratio.min(MAX_DECODED).saturating_sub(self.bytes_out);
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}

fn decode_with<C: Write>(
    codec: &mut C,
    sink: impl Fn(&mut C) -> &mut Sink,
    piece: &[u8],
    allowance: usize,
) -> Result<Bytes, Undecodable> {
    sink(codec).allowance = allowance;
    codec.write_all(piece)?;
    // Without the flush, a codec holds decoded bytes back, and a client that disconnects after the last event
    // would look like one that disconnected before it.
    codec.flush()?;
    Ok(sink(codec).take())
}

/// Collects decoded bytes, and refuses more than is allowed.
#[derive(Default)]
struct Sink {
    bytes: Vec<u8>,
    allowance: usize,
}

impl Sink {
    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

impl Write for Sink {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(buffer.len()) > self.allowance {
            return Err(io::Error::other("decodes to more than is allowed"));
        }
        self.bytes.extend_from_slice(buffer);
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;

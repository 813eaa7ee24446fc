//! The PTX of an image as text, and which of an image's modules a GPU would run.

use std::io::Read;
use xputrace_wire::device::{Codec, MOST_IMAGE_BYTES, PortableCode};
use xputrace_wire::nvidia::fatbin::GpuTarget;

/// What a GPU can run: its compute capability, such as 90.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub capability: u32,
}

/// PTX that could not be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("decompressing its code: {0}")]
    Lz4(#[from] lz4_flex::block::DecompressError),
    #[error("decompressing its code: {0}")]
    Zstd(#[from] std::io::Error),
    #[error("its code says that it has {0} bytes, more than the {MOST_IMAGE_BYTES} that are read")]
    TooLarge(u64),
    #[error("its PTX is not text in UTF-8")]
    NotText(#[from] std::string::FromUtf8Error),
}

/// Returns the module that the driver would compile for this GPU: the newest of those that it can run.
pub fn best<'p, 'a>(modules: &'p [PortableCode<'a>], gpu: Gpu) -> Option<&'p PortableCode<'a>> {
    let target = |it: &PortableCode<'_>| GpuTarget { sm: it.sm, portability: it.portability };
    modules.iter().filter(|it| target(it).compiles_for(gpu.capability)).max_by_key(|it| target(it).preference())
}

/// Returns the module's text, without what pads it.
///
/// # Errors
/// It is not what its codec makes, too large, or not text.
pub fn text(ptx: &PortableCode<'_>) -> Result<String, TextError> {
    let mut bytes = contents(ptx.codec, &ptx.stored, ptx.text_bytes)?;
    bytes.truncate(bytes.iter().position(|it| *it == 0).unwrap_or(bytes.len()));
    Ok(String::from_utf8(bytes)?)
}

/// Returns code as it was before it was stored; it has so many bytes.
pub(crate) fn contents(codec: Codec, stored: &[u8], bytes: u64) -> Result<Vec<u8>, TextError> {
    if bytes > MOST_IMAGE_BYTES {
        return Err(TextError::TooLarge(bytes));
    }
    Ok(match codec {
        Codec::Plain => stored.to_vec(),
        Codec::Lz4 => lz4_flex::block::decompress(stored, bytes as usize)?,
        Codec::Zstd => from_zstd(stored)?,
    })
}

fn from_zstd(stored: &[u8]) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::new();
    zstd::Decoder::with_buffer(stored)?.single_frame().take(MOST_IMAGE_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        n if n > MOST_IMAGE_BYTES => Err(TextError::TooLarge(n)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::device::Portability;

    const TEXT: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

    fn ptx(codec: Codec, stored: Vec<u8>) -> PortableCode<'static> {
        let text_bytes = TEXT.len() as u64 + 1;
        PortableCode { codec, portability: Portability::Later, sm: 90, text_bytes, stored: stored.into() }
    }

    #[test]
    fn every_codec_gives_the_text() {
        let padded = format!("{TEXT}\0");
        let zstd = zstd::encode_all(padded.as_bytes(), 1).unwrap();
        for (codec, stored) in [
            (Codec::Plain, padded.clone().into_bytes()),
            (Codec::Lz4, lz4_flex::block::compress(padded.as_bytes())),
            (Codec::Zstd, zstd),
        ] {
            assert_eq!(text(&ptx(codec, stored)).unwrap(), TEXT, "{codec:?}");
        }
    }

    #[test]
    fn damaged_text_is_refused() {
        for codec in [Codec::Lz4, Codec::Zstd] {
            assert!(text(&ptx(codec, vec![0xff; 40])).is_err(), "{codec:?}");
        }
        assert!(matches!(text(&ptx(Codec::Plain, vec![0xff])), Err(TextError::NotText(_))));
        let large = PortableCode { text_bytes: u64::MAX, ..ptx(Codec::Lz4, vec![]) };
        assert!(matches!(text(&large), Err(TextError::TooLarge(_))));
    }

    #[test]
    fn a_gpu_runs_the_newest_that_it_can() {
        let of = |sm, portability| PortableCode { sm, portability, ..ptx(Codec::Plain, vec![]) };
        let all = [
            of(75, Portability::Later),
            of(90, Portability::Later),
            of(90, Portability::Exact),
            of(100, Portability::Family),
            of(120, Portability::Later),
        ];
        let on = |capability| best(&all, Gpu { capability }).map(|it| (it.sm, it.portability));
        assert_eq!(on(90), Some((90, Portability::Exact)));
        assert_eq!(on(89), Some((75, Portability::Later)));
        assert_eq!(on(103), Some((100, Portability::Family)));
        assert_eq!(on(110), Some((90, Portability::Later)));
        assert_eq!(on(70), None);
    }
}

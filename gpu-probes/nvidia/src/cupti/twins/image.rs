//! Finds the code in what a program gives to a module-load call: PTX as text, a container ([`xputrace_wire::nvidia::fatbin`]) or a
//! wrapper of one, or machine code alone. All of it is the program's memory: nothing is believed that could not be read.

use xputrace_agent::device::ImageCode;
use xputrace_wire::device::{Codec, ImageOutcome, MOST_IMAGE_BYTES, Portability};
use xputrace_wire::nvidia::fatbin::{Bytes, CONTAINER, FatbinContents, WRAPPER, in_container, read, word};
use xputrace_wire::stored::{ReadableMemory, StoredAt};

const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// How much of a text is read at once: no more than to the next multiple of this, which may be mapped no more.
const PAGE: u64 = 4096;
/// How far into a text its first directive may be: comments come before it.
const HEAD_BYTES: usize = 4096;

/// Finds the code that GPUs of this compute capability would run: PTX, or else a cubin that is not in a container.
pub(crate) fn find_code(
    image: u64,
    capability: u32,
    memory: &mut dyn ReadableMemory,
) -> Result<ImageCode, ImageOutcome> {
    match word(memory, image)? {
        ELF => Ok(ImageCode::Cubin { address: image, bytes: elf_bytes(image, memory)? }),
        _ => find_ptx(image, capability, memory).map(ImageCode::Portable),
    }
}

/// Returns where the PTX is that GPUs of this compute capability would run.
fn find_ptx(image: u64, capability: u32, memory: &mut dyn ReadableMemory) -> Result<Vec<StoredAt>, ImageOutcome> {
    let found = match word(memory, image)? {
        ELF => return Err(ImageOutcome::NoPortableCode),
        CONTAINER => in_container(image, memory)?,
        WRAPPER => in_container(u64::from_le_bytes(read(memory, image.wrapping_add(8))?), memory)?,
        _ => FatbinContents { ptx: vec![text(image, memory)?], ..FatbinContents::default() },
    };
    if found.ptx.is_empty() { Err(ImageOutcome::NoPortableCode) } else { found.of_what_runs(capability) }
}

/// Offsets in ELF's 64-bit headers, and sizes (elf(5)).
mod elf {
    pub(super) const HEADER_BYTES: usize = 64;
    /// In the header: class and byte order.
    pub(super) const CLASS: usize = 4;
    pub(super) const OF_64_LITTLE: u16 = u16::from_le_bytes([2, 1]);
    pub(super) const SEGMENTS_AT: usize = 32;
    pub(super) const SECTIONS_AT: usize = 40;
    /// Size and number of segments' headers, then of sections'.
    pub(super) const SEGMENTS: usize = 54;
    pub(super) const SECTIONS: usize = 58;
    pub(super) const SECTION_BYTES: usize = 64;
    /// In a section's header.
    pub(super) const TYPE: usize = 4;
    pub(super) const OFFSET: usize = 24;
    pub(super) const SIZE: usize = 32;
    /// A type of sections that take no room in the file.
    pub(super) const NOBITS: u32 = 8;
}

/// Returns the size of an ELF file: where the last of its parts ends.
fn elf_bytes(image: u64, memory: &mut dyn ReadableMemory) -> Result<u64, ImageOutcome> {
    let header = Bytes(read::<{ elf::HEADER_BYTES }>(memory, image)?);
    let sections = header.u64(elf::SECTIONS_AT);
    let (section_bytes, n_sections) = (header.u16(elf::SECTIONS), header.u16(elf::SECTIONS + 2));
    if header.u16(elf::CLASS) != elf::OF_64_LITTLE
        || usize::from(section_bytes) != elf::SECTION_BYTES
        || n_sections == 0
    {
        return Err(ImageOutcome::NoPortableCode);
    }
    let table_end = |at: u64, each: u16, n: u16| at.checked_add(u64::from(each) * u64::from(n));
    let (segment_bytes, n_segments) = (header.u16(elf::SEGMENTS), header.u16(elf::SEGMENTS + 2));
    let mut ends = vec![
        table_end(sections, section_bytes, n_sections),
        table_end(header.u64(elf::SEGMENTS_AT), segment_bytes, n_segments),
    ];
    for at in 0..u64::from(n_sections) {
        let address = image.wrapping_add(sections).wrapping_add(at * elf::SECTION_BYTES as u64);
        let section = Bytes(read::<{ elf::SECTION_BYTES }>(memory, address)?);
        if section.u32(elf::TYPE) != elf::NOBITS {
            ends.push(section.u64(elf::OFFSET).checked_add(section.u64(elf::SIZE)));
        }
    }
    let end = ends.into_iter().try_fold(0, |most, end| Some(end?.max(most))).ok_or(ImageOutcome::Unreadable)?;
    if end > MOST_IMAGE_BYTES { Err(ImageOutcome::TooLarge) } else { Ok(end) }
}

/// Describes PTX as text.
fn text(address: u64, memory: &mut dyn ReadableMemory) -> Result<StoredAt, ImageOutcome> {
    let mut head = Vec::new();
    let mut bytes = 0;
    let mut page = [0; PAGE as usize];
    loop {
        let at = address.wrapping_add(bytes);
        let piece = &mut page[..(PAGE - at % PAGE) as usize];
        if !memory.read(at, piece) {
            return Err(ImageOutcome::Unreadable);
        }
        let end = piece.iter().position(|it| *it == 0);
        let text = &piece[..end.unwrap_or(piece.len())];
        if head.len() < HEAD_BYTES {
            head.extend_from_slice(text);
            // Whatever else it is, it need not be read to its end.
            if head.iter().any(|it| !is_text(*it)) || head.len() >= HEAD_BYTES && !is_ptx(&head) {
                return Err(ImageOutcome::NoPortableCode);
            }
        }
        bytes += text.len() as u64;
        if end.is_some() {
            break;
        }
        if bytes > MOST_IMAGE_BYTES {
            return Err(ImageOutcome::TooLarge);
        }
    }
    if !is_ptx(&head) {
        return Err(ImageOutcome::NoPortableCode);
    }
    let (codec, portability) = (Codec::Plain, Portability::Later);
    Ok(StoredAt { codec, portability, sm: 0, bytes, address, stored_bytes: bytes })
}

/// Comments of compilers may have names of files in any encoding.
fn is_text(byte: u8) -> bool {
    byte >= b' ' || matches!(byte, b'\t'..=b'\r')
}

fn is_ptx(head: &[u8]) -> bool {
    head.windows(8).any(|it| it == b".version")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory with these bytes from an address on, and nothing else.
    struct At<'a>(u64, &'a [u8]);

    impl ReadableMemory for At<'_> {
        fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
            let from = address.checked_sub(self.0).and_then(|it| self.1.get(usize::try_from(it).ok()?..));
            let Some(from) = from.and_then(|it| it.get(..into.len())) else { return false };
            into.copy_from_slice(from);
            true
        }
    }

    const BASE: u64 = 0x7f00_0000_1000;
    /// What `nvcc` of CUDA 13.0 makes of `tests/images/scale.cu`, with a cubin for `sm_90`, and PTX for it and `sm_75`.
    const ZSTD: &[u8] = include_bytes!("../../../tests/images/zstd.fatbin");
    const LZ4: &[u8] = include_bytes!("../../../tests/images/lz4.fatbin");
    const PLAIN: &[u8] = include_bytes!("../../../tests/images/plain.fatbin");
    const EXACT: &[u8] = include_bytes!("../../../tests/images/exact.fatbin");
    const FAMILY: &[u8] = include_bytes!("../../../tests/images/family.fatbin");

    /// No cubin of those runs there.
    const NEWEST: u32 = 130;

    fn found(bytes: &[u8]) -> Vec<StoredAt> {
        find_ptx(BASE, NEWEST, &mut At(BASE, bytes)).unwrap()
    }

    #[test]
    fn ptx_is_that_of_the_code_that_runs() {
        let on = |capability, bytes: &[u8]| {
            find_ptx(BASE, capability, &mut At(BASE, bytes)).map(|all| all.iter().map(|it| it.sm).collect::<Vec<_>>())
        };
        assert_eq!(on(90, PLAIN), Ok(vec![90]));
        assert_eq!(on(75, PLAIN), Ok(vec![90, 75]), "the driver compiles one of them");
        // The PTX for sm_90 becomes PTX for sm_80, as with code=[sm_90,compute_80].
        let mut older = PLAIN.to_vec();
        let at = (found(PLAIN)[0].address - BASE) as usize - found_header_bytes(PLAIN);
        older[at + 28] = 80;
        assert_eq!(on(90, &older), Err(ImageOutcome::OlderPortableCode));
    }

    /// Size of the header before the first PTX.
    fn found_header_bytes(bytes: &[u8]) -> usize {
        let first = (found(bytes)[0].address - BASE) as usize;
        (16..=first).rev().find(|it| bytes[first - it..].starts_with(&[1, 0, 1, 1])).unwrap()
    }

    fn stored<'a>(bytes: &'a [u8], ptx: &StoredAt) -> &'a [u8] {
        let from = (ptx.address - BASE) as usize;
        &bytes[from..from + ptx.stored_bytes as usize]
    }

    #[test]
    fn ptx_is_found_in_what_the_compiler_makes() {
        for (bytes, codec, begins) in [
            (PLAIN, Codec::Plain, &b"\n\n\n\n\n\n\n\n.version 9.0"[..]),
            (LZ4, Codec::Lz4, b"\x13\n\x01\x00\xf0\x1c.version"),
            (ZSTD, Codec::Zstd, b"\x28\xb5\x2f\xfd"),
        ] {
            let all = found(bytes);
            assert_eq!(all.iter().map(|it| it.sm).collect::<Vec<_>>(), [90, 75]);
            for it in &all {
                assert_eq!((it.codec, it.portability), (codec, Portability::Later));
                assert!(stored(bytes, it).starts_with(begins), "{it:?}");
                assert!((668..=672).contains(&it.bytes), "{it:?}");
            }
        }
        let [exact, family] = [EXACT, FAMILY].map(|it| (found(it)[0].sm, found(it)[0].portability));
        assert_eq!((exact, family), ((90, Portability::Exact), (100, Portability::Family)));
    }

    #[test]
    fn a_cubin_ends_with_the_last_of_its_parts() {
        let found = |bytes: &[u8]| find_code(BASE, NEWEST, &mut At(BASE, bytes));
        // The container's first entry has a header of 64 bytes.
        let cubin = &PLAIN[80..];
        let size = usize::try_from(u64::from_le_bytes(PLAIN[24..32].try_into().unwrap())).unwrap();
        let Ok(ImageCode::Cubin { address: BASE, bytes }) = found(cubin) else { panic!("{:?}", found(cubin)) };
        // The entry pads it to a multiple of 8.
        assert!((size - 7..=size).contains(&(bytes as usize)), "{bytes} of {size}");
        assert!(matches!(found(PLAIN), Ok(ImageCode::Portable(_))));
        assert_eq!(found(&cubin[..100]), Err(ImageOutcome::Unreadable));
        let no_sections = [&b"\x7fELF\x02\x01\x01"[..], &[0; 100]].concat();
        assert_eq!(found(&no_sections), Err(ImageOutcome::NoPortableCode));
        let mut endless = cubin.to_vec();
        endless[elf::SEGMENTS_AT..][..8].fill(0xff);
        assert_eq!(found(&endless), Err(ImageOutcome::Unreadable));
        endless[elf::SEGMENTS_AT..][..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        assert_eq!(found(&endless), Err(ImageOutcome::TooLarge));
    }

    #[test]
    fn a_wrapper_leads_to_its_container() {
        let mut bytes = [WRAPPER.to_le_bytes(), 1u32.to_le_bytes()].concat();
        bytes.extend((BASE + 24).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(PLAIN);
        assert_eq!(found(&bytes).len(), 2);
        bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(find_ptx(BASE, NEWEST, &mut At(BASE, &bytes)), Err(ImageOutcome::Unreadable));
    }

    #[test]
    fn text_is_ptx_to_its_end() {
        for shift in [0, 1, PAGE as usize - 3] {
            let text = format!("// é\n.version 8.0\n{}\0behind", " ".repeat(10_000));
            let bytes = [&vec![b' '; shift], text.as_bytes(), &[0; PAGE as usize]].concat();
            let [it] = find_ptx(BASE + shift as u64, NEWEST, &mut At(BASE, &bytes)).unwrap()[..] else { panic!() };
            assert_eq!((it.codec, it.sm, it.stored_bytes as usize), (Codec::Plain, 0, text.len() - 7));
        }
    }

    #[test]
    fn anything_else_has_none() {
        let outcome = |bytes: &[u8]| find_ptx(BASE, NEWEST, &mut At(BASE, &[bytes, &[0; 8192]].concat())).unwrap_err();
        let elf = &PLAIN[80..];
        assert_eq!((outcome(elf), &elf[..4]), (ImageOutcome::NoPortableCode, &b"\x7fELF"[..]));
        for bytes in [&b""[..], b"BC\xc0\xde", b"no such text", &[b'x'; 6000]] {
            assert_eq!(outcome(bytes), ImageOutcome::NoPortableCode, "{bytes:?}");
        }
        assert_eq!(find_ptx(8, NEWEST, &mut At(BASE, PLAIN)), Err(ImageOutcome::Unreadable));
        let endless = vec![b' '; (MOST_IMAGE_BYTES + 3 * PAGE) as usize];
        let endless = [b".version", &endless[..]].concat();
        assert_eq!(find_ptx(BASE, NEWEST, &mut At(BASE, &endless)), Err(ImageOutcome::TooLarge));
    }

    /// Whatever the headers say, what is found lies in the container that they describe, and the search ends.
    #[test]
    fn damaged_containers_are_survived() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        for original in [PLAIN, LZ4, ZSTD, EXACT, FAMILY] {
            let entries: Vec<usize> = found(original).iter().map(|it| (it.address - BASE) as usize - 80).collect();
            for _ in 0..20_000 {
                let mut bytes = original.to_vec();
                for _ in 0..1 + random() % 4 {
                    // Most of it is payload, which is not looked at.
                    let header = [0, 16, entries[random() % entries.len()]][random() % 3];
                    let value = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() % 6];
                    bytes[header + random() % 80] = value;
                }
                bytes.truncate(if random() % 4 == 0 { random() % bytes.len() } else { bytes.len() });
                if let Ok(all) = find_ptx(BASE, NEWEST, &mut At(BASE, &bytes)) {
                    for it in all {
                        assert!(it.address > BASE && it.stored_bytes <= MOST_IMAGE_BYTES, "{it:?}");
                    }
                }
            }
        }
    }
}

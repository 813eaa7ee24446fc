//! The bytes that collector and tracer share.

use super::files_in;
use crate::harness::{Bound, Target};
use std::sync::atomic::Ordering::Relaxed;
use xputrace_wire::api::Functions;
use xputrace_wire::device::{
    self, ArrayPlace, Choice, Codec, CopyExtent, DeviceCode, DeviceRegionShape, Patches, Portability, PortableCode,
    ProgramLaunch, Programs, Twin, decode_image, encode_image,
};
use xputrace_wire::message::Message;
use xputrace_wire::nvidia::fatbin::in_container;
use xputrace_wire::record::{self, PythonCode, Record, framed, kind, records};
use xputrace_wire::ring::{Reader, RingHeader};
use xputrace_wire::stored::ReadableMemory;
use xputrace_wire::times::{self, Times};

/// Readers that keep no more than what they read.
const SMALL: Bound = Bound { bytes: 1 << 20, per_byte: 64 };

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "message",
        read: message,
        seeds: messages,
        words: &["64 16 24 40 48", "16 4096,", "20:1 "],
        bound: SMALL,
    },
    Target { name: "records", read: all_records, seeds: rings, words: &[], bound: SMALL },
    Target { name: "ring", read: ring, seeds: rings, words: &[], bound: SMALL },
    Target { name: "device_messages", read: device_messages, seeds: device_seeds, words: &[], bound: SMALL },
    Target { name: "fatbin", read: fatbin, seeds: fatbins, words: &[], bound: Bound { bytes: 4 << 20, per_byte: 64 } },
];

fn message(input: &[u8]) {
    let Some(message) = Message::decode(input) else { return };
    assert_eq!(Message::decode(&message.encode()).map(|it| it.words), Some(message.words));
    if let Some(shape) = DeviceRegionShape::of_text(&message.text) {
        assert_eq!(DeviceRegionShape::of_text(&shape.to_text()), Some(shape));
        if shape.is_sound() {
            let end = shape.pieces(CopyExtent::Whole).map(|it| it.end).max();
            assert!(end.is_some_and(|it| it as u64 <= shape.block_bytes) && shape.copy_offset(15) <= shape.size());
        }
    }
    if let Some(all) = ArrayPlace::all_of_text(&message.text) {
        assert_eq!(ArrayPlace::all_of_text(&ArrayPlace::all_to_text(&all)), Some(all));
    }
    let _ = Functions::of_text(&message.text);
}

fn messages() -> Vec<Vec<u8>> {
    let texts = ["libcudart.so.13", "64 16 24 40 48", "16 4096,24 8", "0:1 1f:ffffffffffffffff", ""];
    texts.iter().map(|it| Message::new(1, &[1, 2, 3, 4096, 512, 1 << 20], *it).encode()).collect()
}

fn all_records(input: &[u8]) {
    let mut frames = framed(input);
    let mut n_bytes = 0;
    for frame in frames.by_ref() {
        assert_eq!(frame.offset, n_bytes);
        n_bytes += frame.whole.len();
        match frame.decode() {
            Some(Record::Code { contents, .. }) => _ = PythonCode::decode(contents),
            Some(Record::Gpu { gpu, name, .. }) => _ = (gpu.uuid_text(name), gpu.is_called(name, "GPU-0011")),
            _ => {}
        }
    }
    assert_eq!(n_bytes + frames.rest().len(), input.len());
    assert!(records(input).filter(Result::is_err).count() <= 1);
    let _ = PythonCode::decode(input);
    if let Some(bytes) = input.first_chunk::<{ times::record::BYTES }>() {
        let number = u64::from_le_bytes(std::array::from_fn(|it| bytes[it])).wrapping_sub(1);
        let read = Times::of_record(bytes, number).expect("its mark is this number's");
        assert_eq!(Times::of_record(&read.record(number), number), Some(read));
    }
}

/// Rings of recordings, and records of kinds that these lack.
fn rings() -> Vec<Vec<u8>> {
    let mut described = Vec::new();
    let gpu = record::Gpu { device: 3, name_len: 11, ..record::Gpu::default() };
    record::push(&mut described, kind::GPU, &gpu, &record::GpuLimits::default().after(b"NVIDIA H200"));
    let object = record::MappedObject {
        id: 5,
        build_id_len: 3,
        path_len: 3,
        directory_len: 2,
        ..record::MappedObject::default()
    };
    record::push(&mut described, kind::OBJECT, &object, b"abclib/a");
    let mapping = record::Mapping { start: 1, end: 2, file_offset: 3, inode: 4, device: 5, path_len: 6 };
    record::push(&mut described, kind::MAPPING, &mapping, b"/a.out");
    let gap = record::Yield { began: 1, ended: 2, launches: 3, len: 4 };
    record::push(&mut described, kind::YIELD, &gap, b"a.so");
    let stack = record::Stack { id: 1, len: 2, end: 3 };
    record::push(
        &mut described,
        kind::STACK,
        &stack,
        &[[7; 16].as_slice(), &[2, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]].concat(),
    );
    let code = [7u32, 4, 4, 2, 1, 2].map(u32::to_le_bytes).concat();
    let code = [&code[..], b"a.pyab\0\0\x09\x08"].concat();
    record::push(&mut described, kind::CODE, &record::Code { id: 4, len: code.len() as u32 }, &code);
    [vec![described, code], super::recordings::rings()].concat()
}

/// Reads a ring whose header and data another process has written: the first words are what it has in the header.
fn ring(input: &[u8]) {
    const CAPACITY: usize = 4096;
    let Some((words, data)) = input.split_first_chunk::<32>() else { return };
    let words: [u64; 4] = std::array::from_fn(|n| u64::from_le_bytes(std::array::from_fn(|it| words[8 * n + it])));
    let mut memory = vec![0u64; CAPACITY / 8];
    for (to, from) in memory.iter_mut().zip(data.chunks_exact(8)) {
        *to = u64::from_le_bytes(std::array::from_fn(|it| from[it]));
    }
    let header = RingHeader::default();
    // SAFETY: header and memory are there as long as the reader, and the memory has this capacity.
    let mut reader = unsafe { Reader::new(&header, memory.as_ptr().cast(), CAPACITY as u32) };
    let mut out = Vec::new();
    for word in words {
        header.written.store(word, Relaxed);
        header.read.0.store(word ^ u64::MAX, Relaxed);
        let (before, mark) = (out.len(), reader.mark());
        reader.take(mark, &mut out);
        assert!(out.len() - before <= CAPACITY);
        all_records(&out[before..]);
    }
}

fn device_messages(input: &[u8]) {
    if let Some(all) = decode_image(input) {
        assert_eq!(decode_image(&encode_image(&all)), Some(all));
    }
    if let Some(code) = DeviceCode::decode(input) {
        assert_eq!(DeviceCode::decode(&code.encode()), Some(code));
    }
}

fn device_seeds() -> Vec<Vec<u8>> {
    let ptx = |codec, sm, stored: &'static [u8]| PortableCode {
        codec,
        portability: Portability::Exact,
        sm,
        text_bytes: 90,
        stored: stored.into(),
    };
    let image = [ptx(Codec::Plain, 0, b".version 8.0\n"), ptx(Codec::Zstd, 90, b"12345678")];
    let choice = Choice { conditions: [Some(0), Some(31), None], holding: 2 };
    let twin = Twin {
        code: vec![0, 1, 2],
        kernels: vec!["a".into(), "b".into()],
        variables: vec!["table".into()],
        names: vec![7, 8, 9],
        choices: vec![Choice::default(), choice],
    };
    let kernel = device::PatchedKernel {
        symbol: "gemm".into(),
        name: 7,
        conditions: Choice::default(),
        handlers: [3; device::CHOICES],
        parameters: Default::default(),
        reading: 1,
    };
    let patches = Patches { code: vec![0, 1], points: vec![device::PatchPoint::Entry], kernels: vec![kernel] };
    let launch = ProgramLaunch { symbol: "run".into(), grid: [4, 1, 1], block: [32, 1, 1] };
    let programs = Programs { code: b".version 8.0".to_vec(), launches: vec![launch] };
    let twins = DeviceCode::Twins(vec![twin, Twin::default()]);
    let all = [twins, DeviceCode::Patches(patches), DeviceCode::Programs(programs)];
    [encode_image(&image)].into_iter().chain(all.iter().map(DeviceCode::encode)).collect()
}

/// A program's memory that ends where the input does.
struct Bytes<'a>(&'a [u8]);

impl ReadableMemory for Bytes<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let from = usize::try_from(address).ok().and_then(|it| self.0.get(it..)?.get(..into.len()));
        from.map(|it| into.copy_from_slice(it)).is_some()
    }
}

fn fatbin(input: &[u8]) {
    let Ok(found) = in_container(0, &mut Bytes(input)) else { return };
    for capability in [70, 90, 100] {
        let _ = found.cubin_that_runs(capability);
        let _ = found.clone().of_what_runs(capability);
    }
}

fn fatbins() -> Vec<Vec<u8>> {
    files_in("gpu-probes/nvidia/tests/images", ".fatbin")
}

//! The code for GPUs in files.

use object::write::{Object, StandardSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind};
use std::cell::Cell;
use std::fs::File;
use xputrace_twins::{cubin_in, entries_of, images_of, kernels_of, ptx_in, text};

/// What `nvcc` of CUDA 13.0 makes of `gpu-probes/collector/tests/images/scale.cu`: a cubin for `sm_90`, and PTX for it and `sm_75`.
const ZSTD: &[u8] = include_bytes!("../../collector/tests/images/zstd.fatbin");
const LZ4: &[u8] = include_bytes!("../../collector/tests/images/lz4.fatbin");
const PLAIN: &[u8] = include_bytes!("../../collector/tests/images/plain.fatbin");

/// Returns an ELF file with this in a section of that name.
fn program(section: &str, contents: &[u8]) -> File {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let code = object.section_id(StandardSection::Text);
    object.append_section_data(code, &[0x90; 100], 16);
    let id = object.add_section(Vec::new(), section.into(), SectionKind::ReadOnlyData);
    object.append_section_data(id, contents, 8);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &object.write().unwrap()).unwrap();
    file
}

fn padded(container: &[u8], bytes: usize) -> Vec<u8> {
    let mut padded = container.to_vec();
    padded.resize(container.len().next_multiple_of(8) + bytes, 0);
    padded
}

#[test]
fn all_containers_of_a_program_are_found() {
    let section = [padded(ZSTD, 0), padded(LZ4, 8), padded(&[7; 100_000], 0), padded(PLAIN, 24)].concat();
    let file = program(".nv_fatbin", &section);
    let images = images_of(&file, &|| true);
    assert!(!images.is_cut);
    let sizes: Vec<u64> = images.all.iter().map(|it| it.bytes).collect();
    assert_eq!(sizes, [ZSTD, LZ4, PLAIN].map(|it| it.len() as u64));
    for image in &images.all {
        let texts: Vec<String> = image.ptx.iter().map(|it| text(&ptx_in(&file, it).unwrap()).unwrap()).collect();
        assert_eq!(texts.iter().flat_map(|it| entries_of(it)).collect::<Vec<_>>(), ["scale"; 2]);
        let cubin = cubin_in(&file, image.cubin_that_runs(90).unwrap()).unwrap();
        assert!(kernels_of(&cubin).is_ok() && image.cubin_that_runs(75).is_none());
    }
}

#[test]
fn kernels_are_functions_that_have_parameters() {
    let mut cubin = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    for section in [".text.scale", ".nv.constant0.scale", ".text.helper"] {
        cubin.add_section(Vec::new(), section.into(), SectionKind::ReadOnlyData);
    }
    assert_eq!(kernels_of(&cubin.write().unwrap()).unwrap(), ["scale"]);
}

#[test]
fn containers_without_code_are_left_out() {
    let empty: [u8; 16] = std::array::from_fn(|it| if it < 8 { PLAIN[it] } else { 0 });
    let file = program(".nv_fatbin", &[&empty.repeat(1000), PLAIN].concat());
    let images = images_of(&file, &|| true);
    assert_eq!((images.is_cut, images.all.len()), (false, 1));
}

#[test]
fn a_search_ends_where_there_is_too_much() {
    // Entries without a payload.
    let mut entry = PLAIN[16..80].to_vec();
    entry[4..16].copy_from_slice(&[64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    entry[40..48].fill(0);
    let mut container = PLAIN[..16].to_vec();
    container[8..16].copy_from_slice(&(4096u64 * 64).to_le_bytes());
    container.extend(entry.repeat(4096));
    let file = program(".nv_fatbin", &container.repeat(66));
    let images = images_of(&file, &|| true);
    assert_eq!((images.is_cut, images.all.len()), (true, 64));
}

#[test]
fn a_search_ends_when_it_is_given_up() {
    let file = program(".nv_fatbin", &[padded(ZSTD, 0), padded(LZ4, 0)].concat());
    let n = Cell::new(0);
    let images = images_of(&file, &|| n.replace(n.get() + 1) == 0);
    assert_eq!((images.is_cut, images.all.len()), (true, 1));
}

#[test]
fn other_files_have_none() {
    for (section, contents) in [(".rodata", PLAIN), ("__nv_relfatbin", PLAIN), (".nv_fatbin", &PLAIN[8..])] {
        assert_eq!(images_of(&program(section, contents), &|| true).all, [], "{section}");
    }
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"no program").unwrap();
    assert_eq!(images_of(&file, &|| true).all, []);
}

/// Whatever a section has, the search ends, and what it finds can be read or is refused.
#[test]
fn damaged_containers_are_survived() {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for original in [PLAIN, LZ4, ZSTD] {
        for _ in 0..300 {
            let mut bytes = padded(original, 0);
            for _ in 0..1 + random() % 4 {
                let at = [random() % 160, random() % bytes.len()][random() % 2];
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() % 6];
            }
            let file = program(".nv_fatbin", &bytes);
            for image in images_of(&file, &|| true).all {
                image.ptx.iter().for_each(|it| _ = ptx_in(&file, it).map(|it| text(&it)));
                image.cubins.iter().for_each(|it| _ = cubin_in(&file, it).map(|it| kernels_of(&it)));
            }
        }
    }
}

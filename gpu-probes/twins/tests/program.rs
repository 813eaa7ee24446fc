//! The code for GPUs in files.

use object::write::{Object, StandardSection};
use object::{Architecture, BinaryFormat, Endianness, SectionKind};
use std::cell::Cell;
use std::fs::File;
use std::process::Command;
use xputrace_twins::{cubin_in, entries_of, images_of, kernels_of, parameters_of, ptx_in, text};
use xputrace_wire::device::Parameter;

/// What `nvcc` of CUDA 13.0 makes of `gpu-probes/nvidia/tests/images/scale.cu`: a cubin for `sm_90`, and PTX for it and `sm_75`.
const ZSTD: &[u8] = include_bytes!("../../nvidia/tests/images/zstd.fatbin");
const LZ4: &[u8] = include_bytes!("../../nvidia/tests/images/lz4.fatbin");
const PLAIN: &[u8] = include_bytes!("../../nvidia/tests/images/plain.fatbin");

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

/// A fact of a kernel, as `ptxas` writes them.
fn fact(attribute: u8, bytes: &[u8]) -> Vec<u8> {
    [&[4, attribute, bytes.len() as u8, 0][..], bytes].concat()
}

fn parameter(number: u8, offset: u8, size: u8) -> Vec<u8> {
    fact(0x17, &[0, 0, 0, 0, number, 0, offset, 0, 0, 0xf0, 1 | size << 2, 0])
}

#[test]
fn parameters_are_read_where_all_of_them_are_told() {
    let of = |offset, bytes| Parameter { offset, bytes };
    let of_all = |bytes: u8| vec![3, 0x19, bytes, 0];
    let both = [parameter(1, 8, 4), parameter(0, 0, 8)].concat();
    let large = [
        fact(0x45, &[0, 0, 0, 0, 1, 0, 0x20, 0x4e, 8, 0, 0, 0]),
        fact(0x45, &[0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0x4e, 0, 0]),
    ];
    let mut cubin = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    for (name, facts) in [
        ("both", [of_all(12), both.clone()].concat()),
        ("none", fact(0x1c, &[0; 8])),
        ("large", [large.concat(), vec![3, 0x19, 0x28, 0x4e]].concat()),
        ("cut", [of_all(12), both[..17].to_vec()].concat()),
        ("more", [of_all(16), both].concat()),
        ("without_the_first", [of_all(12), parameter(1, 8, 4)].concat()),
        ("short", fact(0x17, &[0; 10])),
    ] {
        let id = cubin.add_section(Vec::new(), format!(".nv.info.{name}").into(), SectionKind::ReadOnlyData);
        cubin.append_section_data(id, &facts, 4);
    }
    let mut found: Vec<_> = parameters_of(&cubin.write().unwrap()).unwrap().into_iter().collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let named = |name: &str, all: &[Parameter]| (name.to_owned(), all.to_vec());
    let large = [of(0, 20_000), of(20_000, 8)];
    assert_eq!(found, [named("both", &[of(0, 8), of(8, 4)]), named("large", &large), named("none", &[])]);
}

/// Compiles PTX with the `ptxas` that the variable PTXAS names, or that is on the PATH.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn compiled(text: &str, target: &str) -> Option<Vec<u8>> {
    let ptxas = std::env::var_os("PTXAS").unwrap_or("ptxas".into());
    let directory = tempfile::tempdir().unwrap();
    let [source, cubin] = ["text.ptx", "code.cubin"].map(|it| directory.path().join(it));
    std::fs::write(&source, text).unwrap();
    match Command::new(&ptxas).args(["-arch", target, "-o"]).args([&cubin, &source]).output() {
        Ok(it) => assert!(it.status.success(), "{}", String::from_utf8_lossy(&it.stderr)),
        Err(error) => {
            eprintln!("skipped: no GPU toolkit for {target}: {}: {error}", ptxas.display());
            return None;
        }
    }
    Some(std::fs::read(cubin).unwrap())
}

#[test]
fn parameters_are_read_from_what_ptxas_makes() {
    let of = |offset, bytes| Parameter { offset, bytes };
    for target in ["sm_80", "sm_90", "sm_90a"] {
        let text = format!(
            ".version 8.0\n.target {target}\n.address_size 64\n.visible .entry none() {{ ret; }}\n.visible .entry some(\
             .param .u8 a, .param .u64 .ptr .global .align 1 b, .param .align 4 .b8 c[20], .param .f32 d, .param .u16 e) {{ ret; }}\n"
        );
        let Some(cubin) = compiled(&text, target) else { return };
        let found = parameters_of(&cubin).unwrap();
        assert_eq!((found["none"].len(), found.len()), (0, 2));
        assert_eq!(found["some"], [of(0, 1), of(8, 8), of(16, 20), of(36, 4), of(40, 2)], "{target}");
    }
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
fn a_search_ends_behind_a_container_that_says_it_is_endless() {
    // A header, and an entry of no known kind that takes all the rest.
    let (header_bytes, entry_bytes) = (16u64, 64u64);
    let bytes = u64::MAX - header_bytes;
    let header = [&0xba55_ed50u32.to_le_bytes()[..], &[1, 0, 16, 0], &bytes.to_le_bytes()].concat();
    let mut entry =
        [&[9, 0, 1, 1][..], &(entry_bytes as u32).to_le_bytes(), &(bytes - entry_bytes).to_le_bytes()].concat();
    entry.resize(entry_bytes as usize, 0);
    let file = program(".nv_fatbin", &[header, entry].concat());
    let n_asked = Cell::new(0);
    let goes_on = || n_asked.replace(n_asked.get() + 1) < 100;
    assert!(!images_of(&file, &goes_on).is_cut);
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

//! What a function returns, by the DWARF of its file.

use crate::elf::Elf;
use gimli::{
    AttributeValue, DebuggingInformationEntry, DwarfSections, EndianSlice, LittleEndian, SectionId, Unit, UnitOffset,
    constants,
};
use xputrace_model::catalog::ReturnType;

type DwarfReader<'d> = EndianSlice<'d, LittleEndian>;
type Die<'d> = DebuggingInformationEntry<DwarfReader<'d>>;
type Dwarf<'d> = gimli::Dwarf<DwarfReader<'d>>;

/// Longest chain of types (`typedef`, `const`, …) and of declarations that is followed.
const MOST_STEPS: usize = 16;

/// The sections that tell of types and of where code is. The others are as large, and would be copied too.
const TELLING: &[SectionId] = &[
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

/// Returns what the function at a virtual address returns; `None` if the file has no DWARF of it, or that names no type.
pub(crate) fn of(elf: &Elf, address: u64) -> Option<ReturnType> {
    elf.section_address(".debug_info")?;
    let data = |id: SectionId| -> Result<&[u8], gimli::Error> {
        let section = TELLING.contains(&id).then(|| elf.section(id.name())).flatten();
        Ok(section.map(|it| it.bytes).unwrap_or_default())
    };
    let sections = DwarfSections::load(data).ok()?;
    let dwarf = sections.borrow(|it| EndianSlice::new(it, LittleEndian));
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        if contains(&dwarf, &unit, address)
            && let Some(function) = function_at(&dwarf, &unit, address)
        {
            return returned(&unit, function);
        }
    }
    None
}

/// Whether a unit has code at an address; also if it doesn't say where its code is.
fn contains(dwarf: &Dwarf<'_>, unit: &Unit<DwarfReader<'_>>, address: u64) -> bool {
    let Ok(mut ranges) = dwarf.unit_ranges(unit) else { return false };
    let mut has_any = false;
    while let Ok(Some(range)) = ranges.next() {
        has_any = true;
        if (range.begin..range.end).contains(&address) {
            return true;
        }
    }
    !has_any
}

/// Finds the function that begins at an address.
fn function_at<'d>(dwarf: &Dwarf<'d>, unit: &Unit<DwarfReader<'d>>, address: u64) -> Option<Die<'d>> {
    let mut entries = unit.entries();
    while let Ok(Some(entry)) = entries.next_dfs() {
        let low = entry.attr_value(constants::DW_AT_low_pc).filter(|_| entry.tag() == constants::DW_TAG_subprogram);
        if low.and_then(|it| dwarf.attr_address(unit, it).ok().flatten()) == Some(address) {
            return Some(entry.clone());
        }
    }
    None
}

/// Returns what a function returns. Its type may be that of its declaration, or of what it is a copy of.
fn returned<'d>(unit: &Unit<DwarfReader<'d>>, function: Die<'d>) -> Option<ReturnType> {
    let mut function = function;
    for _ in 0..MOST_STEPS {
        if let Some(found) = follow(unit, &function, constants::DW_AT_type) {
            return type_of(unit, found);
        }
        let declared = [constants::DW_AT_abstract_origin, constants::DW_AT_specification];
        function = declared.iter().find_map(|it| follow(unit, &function, *it))?;
    }
    None
}

/// Returns what a type is, behind its names.
fn type_of<'d>(unit: &Unit<DwarfReader<'d>>, of: Die<'d>) -> Option<ReturnType> {
    let mut of = of;
    for _ in 0..MOST_STEPS {
        let bytes = of.attr_value(constants::DW_AT_byte_size).and_then(|it| it.udata_value());
        let bytes = bytes.and_then(|it| u32::try_from(it).ok());
        match of.tag() {
            constants::DW_TAG_base_type => return base(&of, bytes?),
            constants::DW_TAG_pointer_type
            | constants::DW_TAG_reference_type
            | constants::DW_TAG_rvalue_reference_type => {
                return Some(ReturnType::Integer { bytes: 8, signed: false });
            }
            constants::DW_TAG_enumeration_type if follow(unit, &of, constants::DW_AT_type).is_none() => {
                return Some(ReturnType::Integer { bytes: bytes?, signed: false });
            }
            constants::DW_TAG_enumeration_type
            | constants::DW_TAG_typedef
            | constants::DW_TAG_const_type
            | constants::DW_TAG_volatile_type
            | constants::DW_TAG_restrict_type
            | constants::DW_TAG_atomic_type => of = follow(unit, &of, constants::DW_AT_type)?,
            // What has parts is no number, even where it is returned in a register.
            constants::DW_TAG_structure_type | constants::DW_TAG_class_type | constants::DW_TAG_union_type => {
                return Some(ReturnType::Other);
            }
            _ => return None,
        }
    }
    None
}

fn base(of: &Die<'_>, bytes: u32) -> Option<ReturnType> {
    let Some(AttributeValue::Encoding(encoding)) = of.attr_value(constants::DW_AT_encoding) else { return None };
    let signed = match encoding {
        constants::DW_ATE_signed | constants::DW_ATE_signed_char => true,
        constants::DW_ATE_unsigned | constants::DW_ATE_unsigned_char | constants::DW_ATE_boolean => false,
        constants::DW_ATE_UTF | constants::DW_ATE_address => false,
        constants::DW_ATE_float | constants::DW_ATE_complex_float => return Some(ReturnType::Other),
        _ => return None,
    };
    matches!(bytes, 1 | 2 | 4 | 8).then_some(ReturnType::Integer { bytes, signed })
}

/// Returns the entry of the same unit that an attribute refers to.
fn follow<'d>(unit: &Unit<DwarfReader<'d>>, entry: &Die<'d>, attribute: constants::DwAt) -> Option<Die<'d>> {
    let at: UnitOffset = match entry.attr_value(attribute)? {
        AttributeValue::UnitRef(at) => at,
        AttributeValue::DebugInfoRef(at) => at.to_unit_offset(&unit.header)?,
        _ => return None,
    };
    unit.entry(at).ok()
}

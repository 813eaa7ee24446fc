//! Payloads with a schema, such as those of NCCL, through NVTX's payload extension: where their size is.
//!
//! A library registers the schemas of its payloads, and gives ranges and marks a list of payloads with the schemas' ids.
//! Of a schema only its first member of the type `size` is kept. Structures, ids and types are those of NVTX's public
//! headers (`nvtxExtTypes.h`, `nvToolsExtPayload.h`), the same in all of version 3.

use super::catching::caught;
use super::handles::NvtxHandle;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `NVTX_EXT_PAYLOAD_MODULEID`.
const PAYLOAD_MODULE: u16 = 2;
/// `NVTX3EXT_CBID_nvtxPayloadSchemaRegister`.
const REGISTER_SCHEMA: usize = 0;
/// `NVTX_PAYLOAD_ENTRY_TYPE_SIZE`: a `size_t`.
const TYPE_SIZE: u64 = 22;
/// `NVTX_PAYLOAD_SCHEMA_TYPE_STATIC`: a structure of a fixed layout.
const STATIC: u64 = 1;
/// `NVTX_PAYLOAD_ENTRY_TYPE_SCHEMA_ID_DYNAMIC_START`: from here on ids are a tool's choice.
const FIRST_OWN_ID: u64 = 1 << 32;
/// Bits of `fieldMask`: which fields of a schema are set.
const HAS_TYPE: u64 = 1 << 2;
const HAS_ENTRIES: u64 = 1 << 4 | 1 << 5;
const HAS_ID: u64 = 1 << 8;
/// How many schemas are known; those of further ones are not read.
const MOST_SCHEMAS: usize = 512;
/// Of how many payloads of an event one is looked for.
const MOST_PAYLOADS: usize = 16;

/// `nvtxExtModuleInfo_t`.
#[repr(C)]
pub struct ExtensionModule {
    version: u16,
    struct_size: u16,
    id: u16,
    compatibility: u16,
    segment_count: usize,
    segments: *mut Segment,
    get_export_function: *const c_void,
    info: *const c_void,
}

/// `nvtxExtModuleSegment_t`.
#[repr(C)]
struct Segment {
    id: usize,
    slot_count: usize,
    slots: *mut *const c_void,
}

/// `nvtxPayloadSchemaAttr_t`.
#[repr(C)]
struct Schema {
    fields: u64,
    name: *const c_char,
    kind: u64,
    flags: u64,
    entries: *const SchemaEntry,
    entry_count: usize,
    static_size: usize,
    pack_align: usize,
    id: u64,
    extension: *const c_void,
}

/// `nvtxPayloadSchemaEntry_t`.
#[repr(C)]
struct SchemaEntry {
    flags: u64,
    kind: u64,
    name: *const c_char,
    description: *const c_char,
    detail: u64,
    offset: u64,
    semantics: *const c_void,
    reserved: *const c_void,
}

/// `nvtxPayloadData_t`.
#[repr(C)]
pub(super) struct Payload {
    schema: u64,
    size: usize,
    data: *const c_void,
}

/// A schema whose payloads have a size at an offset.
struct KnownSchema {
    domain: AtomicU64,
    id: AtomicU64,
    offset: AtomicUsize,
}

/// The schemas. Only ever more of them, so that reading takes no lock.
static KNOWN: [KnownSchema; MOST_SCHEMAS] =
    [const { KnownSchema { domain: AtomicU64::new(0), id: AtomicU64::new(0), offset: AtomicUsize::new(0) } };
        MOST_SCHEMAS];
static KNOWN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Called by NVTX at the first call of an extension in a library. Returns 1 if a tool follows its calls; with 0, they do
/// nothing.
///
/// # Safety
/// `module` is null or what NVTX passes to a tool: it has as many segments as it says, and these as many slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtxExtension(module: *mut ExtensionModule) -> c_int {
    // SAFETY: the caller promises that `module` is null or NVTX's: what the other tool is to be given, too.
    let is_chained = super::chained::chained_extension().is_some_and(|it| unsafe { it(module) } != 0);
    // SAFETY: the same.
    let is_attached = caught(false, || unsafe { attach(module) });
    c_int::from(is_chained || is_attached)
}

/// Puts our function into a library's slot, unless another tool has put its own there: that then answers alone.
///
/// # Safety
/// As for [`InitializeInjectionNvtxExtension`], while NVTX initializes the module: its slots may be written.
unsafe fn attach(module: *mut ExtensionModule) -> bool {
    // SAFETY: the caller promises that `module` is null or NVTX's, which has as many segments and slots as it says.
    unsafe {
        let Some(module) = module.as_ref().filter(|it| it.id == PAYLOAD_MODULE && it.segment_count != 0) else {
            return false;
        };
        let Some(segment) = module.segments.as_ref().filter(|it| it.slot_count > REGISTER_SCHEMA) else {
            return false;
        };
        let slot = segment.slots.add(REGISTER_SCHEMA);
        // 0 and 1 stand for "not initialized" and "off".
        let is_free = (*slot).addr() <= 1;
        if is_free {
            *slot = register_schema as *const c_void;
        }
        is_free
    }
}

/// In the place of `nvtxPayloadSchemaRegister`: returns the schema's id.
unsafe extern "C" fn register_schema(domain: NvtxHandle, schema: *const Schema) -> u64 {
    static NEXT_ID: AtomicU64 = AtomicU64::new(FIRST_OWN_ID);
    // SAFETY: the program's argument.
    let Some(schema) = (unsafe { schema.as_ref() }) else { return u64::MAX };
    let has_id = schema.fields & HAS_ID != 0 && schema.id != 0;
    let id = if has_id { schema.id } else { NEXT_ID.fetch_add(1, Ordering::Relaxed) };
    // SAFETY: the program's schema.
    caught((), || unsafe { size_offset(schema) }.into_iter().for_each(|offset| learn(domain, id, offset)));
    id
}

/// Returns where a payload's first size is.
///
/// # Safety
/// The schema has as many entries as it says, if its fields say that it has any.
unsafe fn size_offset(schema: &Schema) -> Option<usize> {
    let is_read = schema.fields & HAS_ENTRIES == HAS_ENTRIES
        && (schema.fields & HAS_TYPE == 0 || schema.kind == STATIC)
        && !schema.entries.is_null();
    // SAFETY: the caller promises that the schema has as many entries as it says; they are not null here.
    let entries = is_read.then(|| unsafe { std::slice::from_raw_parts(schema.entries, schema.entry_count) })?;
    let at = entries.iter().position(|it| it.kind == TYPE_SIZE && it.flags == 0 && it.detail == 0)?;
    // An offset of 0 is one that the tool should find out, but for the first entry.
    usize::try_from(entries[at].offset).ok().filter(|offset| at == 0 || *offset != 0)
}

fn learn(domain: NvtxHandle, id: u64, offset: usize) {
    static WRITES: Mutex<()> = Mutex::new(());
    let _writes = WRITES.lock();
    let count = KNOWN_COUNT.load(Ordering::Acquire);
    if let Some(free) = KNOWN.get(count).filter(|_| offset_of(domain, id).is_none()) {
        free.domain.store(domain, Ordering::Relaxed);
        free.id.store(id, Ordering::Relaxed);
        free.offset.store(offset, Ordering::Relaxed);
        KNOWN_COUNT.store(count + 1, Ordering::Release);
    }
}

fn offset_of(domain: NvtxHandle, id: u64) -> Option<usize> {
    let known = &KNOWN[..KNOWN_COUNT.load(Ordering::Acquire)];
    let it =
        known.iter().find(|it| it.id.load(Ordering::Relaxed) == id && it.domain.load(Ordering::Relaxed) == domain)?;
    Some(it.offset.load(Ordering::Relaxed))
}

/// Returns the first size in the payloads of an event of a domain.
///
/// # Safety
/// `payloads` is null or points to that many, each with null or as many bytes as it says.
pub(super) unsafe fn size_in(domain: NvtxHandle, payloads: *const Payload, count: usize) -> Option<u64> {
    if payloads.is_null() {
        return None;
    }
    // SAFETY: the caller promises that `payloads`, which is not null here, has that many.
    let payloads = unsafe { std::slice::from_raw_parts(payloads, count.min(MOST_PAYLOADS)) };
    payloads.iter().find_map(|it| {
        let offset = offset_of(domain, it.schema)?;
        let fits = offset.checked_add(size_of::<u64>()).is_some_and(|end| end <= it.size) && !it.data.is_null();
        // SAFETY: the caller promises that a payload has the bytes that it says: these are among them, at any
        // alignment.
        fits.then(|| unsafe { it.data.cast::<u8>().add(offset).cast::<u64>().read_unaligned() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;

    fn entry(kind: u64, offset: u64) -> SchemaEntry {
        SchemaEntry {
            flags: 0,
            kind,
            name: null(),
            description: null(),
            detail: 0,
            offset,
            semantics: null(),
            reserved: null(),
        }
    }

    fn register(domain: NvtxHandle, id: u64, entries: &[SchemaEntry]) -> u64 {
        let schema = Schema {
            fields: HAS_TYPE | HAS_ENTRIES | HAS_ID,
            name: null(),
            kind: STATIC,
            flags: 0,
            entries: entries.as_ptr(),
            entry_count: entries.len(),
            static_size: 24,
            pack_align: 0,
            id,
            extension: null(),
        };
        // SAFETY: a live schema.
        unsafe { register_schema(domain, &schema) }
    }

    fn size_of_payload(domain: NvtxHandle, schema: u64, data: &[u64]) -> Option<u64> {
        let payload = Payload { schema, size: size_of_val(data), data: data.as_ptr().cast() };
        // SAFETY: one live payload.
        unsafe { size_in(domain, &payload, 1) }
    }

    #[test]
    fn a_size_is_found_by_its_schema() {
        let uint = 18;
        assert_eq!(register(71, 5, &[entry(uint, 0), entry(TYPE_SIZE, 8), entry(TYPE_SIZE, 16)]), 5);
        assert_eq!(size_of_payload(71, 5, &[1, 4096, 3]), Some(4096));
        assert_eq!(size_of_payload(71, 5, &[1]), None, "too short");
        assert_eq!(size_of_payload(72, 5, &[1, 4096]), None, "another domain's");
        assert_eq!(size_of_payload(71, 6, &[1, 4096]), None, "unknown");
        let own = register(71, 0, &[entry(TYPE_SIZE, 0)]);
        assert!(own >= FIRST_OWN_ID);
        assert_eq!(size_of_payload(71, own, &[7]), Some(7));
        assert_eq!(
            size_of_payload(71, register(71, 8, &[entry(uint, 0), entry(TYPE_SIZE, 0)]), &[1, 2]),
            None,
            "no offset"
        );
        // SAFETY: null is allowed.
        assert_eq!(unsafe { size_in(71, null(), 1) }, None);
    }
}

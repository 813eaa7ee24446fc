//! Handlers that have been checked, with the memory that they share.

use crate::arguments::{argument_word, arguments_in};
use crate::handler::{Handler, HandlerSite, Origin, Texts, Wanted, keeps};
use crate::maps::{GpuMap, NOWHERE, RING_SLOTS, device_map, threads_with_room};
use crate::refusal::MakerError;
use crate::spot::Spot;
use crate::words::{TIMER, together_again};
use std::collections::BTreeSet;
use xputrace_bytecode::BpfMapId;
use xputrace_device::arena::{Arena, Needs};
use xputrace_device::layout::{LINE_BYTES, descriptor};
use xputrace_device::{DeviceMap, Options, Refusal, Request, Storage, Sums, TableAt, Word, sums, translate};
use xputrace_events::DeviceEvent;
use xputrace_events::device::SOURCES;
use xputrace_wire::device::{ArrayPlace, NAMES_VARIABLE, RingPlace};

/// Makes twins and patches with the handlers of one script, whose maps are in one piece of memory.
#[derive(Debug)]
pub struct Maker {
    pub(crate) origin: Origin,
    pub(crate) handlers: Vec<Handler>,
    /// The sites of each handler's program, and the number of the first. Behind them, one whose sums are kept has one more.
    own_sites: Vec<(u32, Vec<xputrace_device::Site>)>,
    /// Whether each handler reads what its kernel is called.
    reads_name: Vec<bool>,
    /// The parameters that each handler reads: a bit for each.
    reads_arguments: Vec<u64>,
    sites: Vec<HandlerSite>,
    /// Maps whose elements are merged when they are read, and that handlers only add to.
    pub(crate) added_to: BTreeSet<BpfMapId>,
    maps: Vec<DeviceMap>,
    arena: Arena,
    reads_clock: bool,
    pub(crate) texts: Texts,
}

impl Maker {
    /// Checks that each handler can run on a GPU, and lays out their maps.
    ///
    /// `maps` has a map of the script for each id, `None` for those that are not on the GPU. `string_id` gives the ids of
    /// strings that the script was compiled with.
    ///
    /// # Errors
    /// A handler does what GPUs can't, or the maps are too large.
    pub fn new(
        origin: Origin,
        handlers: Vec<Handler>,
        maps: &[Option<GpuMap<'_>>],
        string_id: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<Maker, MakerError> {
        let merged = maps.iter().enumerate().filter(|it| it.1.is_some_and(|it| it.has_parts));
        let mut added_to: BTreeSet<BpfMapId> = merged.map(|it| BpfMapId::at(it.0)).collect();
        let maps = maps.iter().map(|it| it.map_or(Ok(NOWHERE), device_map)).collect::<Result<Vec<_>, _>>()?;
        let texts = Texts::new(string_id);
        // Nothing that depends on the place is known yet, so these are all the sites that a handler can have.
        let words = origin.context(&Spot::ANY, &texts).into_iter().zip(SOURCES);
        let context: Vec<Word> = words.map(|(word, source)| argument_word(source).unwrap_or(unknown(word))).collect();
        let (mut own_sites, mut sites, mut reads_clock) = (Vec::new(), Vec::new(), false);
        let (mut reads_name, mut reads_arguments) = (Vec::new(), Vec::new());
        for (handler, Handler { place, program, .. }) in handlers.iter().enumerate() {
            let first_site = sites.len() as u32;
            let options = Options { first_site, allow_exit: origin.allows_exit(), ..Options::default() };
            let request = Request { program, maps: &maps, context: &context, options: &options };
            let refused = |refusal| MakerError::Handler { handler, refusal };
            let block = translate(request).map_err(refused)?;
            reads_clock |= block.text.contains(TIMER);
            reads_name.push(block.text.contains(NAMES_VARIABLE));
            reads_arguments.push(arguments_in(&block.text));
            let others = sums::read_or_set(request).map_err(refused)?;
            added_to.retain(|it| !others.contains(it));
            sites.extend(block.sites.iter().map(|it| HandlerSite::new(handler, *it)));
            if keeps(*place) {
                sites.push(HandlerSite { handler, insn: 0, record: None });
            }
            own_sites.push((first_site, block.sites));
        }
        let writes = sites.iter().any(|it: &HandlerSite| it.record.is_some());
        let arena = Arena::new(Needs {
            n_sites: sites.len() as u32,
            ring_slots: if writes { RING_SLOTS } else { 0 },
            n_threads: threads_with_room(&maps),
            maps: maps.clone(),
        })?;
        Ok(Maker {
            origin,
            handlers,
            own_sites,
            reads_name,
            reads_arguments,
            sites,
            added_to,
            maps,
            arena,
            reads_clock,
            texts,
        })
    }

    /// Returns how the memory is laid out.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the sites of all handlers, by number.
    pub fn sites(&self) -> &[HandlerSite] {
        &self.sites
    }

    /// Returns where the memory has its ring, if it has one.
    pub fn ring(&self) -> Option<RingPlace> {
        let (head, tail) = self.arena.ring_words();
        let slots = self.arena.ring_parts().0.start;
        let place = RingPlace { tail, slots, head, end: head + LINE_BYTES };
        (self.arena.ring_slots() > 0).then_some(place)
    }

    /// Returns the arrays of Linux that handlers use, and where the memory is to say where they are.
    pub fn arrays(&self) -> Vec<(BpfMapId, ArrayPlace)> {
        let outer = self.maps.iter().enumerate().filter(|it| it.1.kind == Storage::OuterArray);
        outer
            .map(|(map, shape)| {
                let at = self.arena.counter(map, descriptor::VALUES);
                let bytes = u64::from(shape.value_stride()) * u64::from(shape.max_entries);
                (BpfMapId::at(map), ArrayPlace { at, bytes })
            })
            .collect()
    }

    /// Whether any handler reads the GPU's timer.
    pub fn reads_clock(&self) -> bool {
        self.reads_clock
    }

    /// Whether any handler reads parameters of its kernel.
    pub fn reads_arguments(&self) -> bool {
        self.reads_arguments.iter().any(|it| *it != 0)
    }

    /// Returns the parameters that any of these handlers reads: a bit for each.
    pub fn arguments_of(&self, wanted: &Wanted) -> u64 {
        wanted.handlers.iter().fold(0, |all, it| all | self.reads_arguments[*it])
    }

    /// Returns the memory as it is at first.
    pub fn initial(&self) -> Vec<u8> {
        let mut memory = self.arena.table();
        memory.resize(self.arena.n_bytes() as usize, 0);
        memory
    }

    /// Returns the maps by their id.
    pub fn maps(&self) -> &[DeviceMap] {
        &self.maps
    }

    /// Returns where a handler runs.
    pub(crate) fn place(&self, handler: usize) -> DeviceEvent {
        self.handlers[handler].place
    }

    /// Returns the number of a handler's condition.
    pub(crate) fn condition(&self, handler: usize) -> Option<u8> {
        self.handlers[handler].condition
    }

    /// Whether a handler reads what its kernel is called.
    pub(crate) fn reads_name(&self, handler: usize) -> bool {
        self.reads_name[handler]
    }

    /// Returns the handlers of a kernel that run at this place.
    pub(crate) fn of_place<'a>(&'a self, wanted: &'a Wanted, place: DeviceEvent) -> impl Iterator<Item = usize> + 'a {
        wanted.handlers.iter().copied().filter(move |at| self.handlers[*at].place == place)
    }

    /// Returns the PTX of a handler, with this context.
    pub(crate) fn block(
        &self,
        handler: usize,
        context: &[Word],
        architecture: u32,
        table: TableAt,
        sums: Sums,
    ) -> Result<String, Refusal> {
        let options = Options { sums, ..self.options(handler, architecture, table) };
        let program = &self.handlers[handler].program;
        let block = |options: &Options| translate(Request { program, maps: &self.maps, context, options });
        let kept = block(&options)?;
        if sums::is_straight(&kept) {
            return Ok(kept.text);
        }
        // Nor does it keep then what it could.
        let text =
            if options.sums.is_empty() { kept } else { block(&Options { sums: Sums::default(), ..options })? }.text;
        // Threads that a handler ends don't come together again.
        Ok(if self.origin.allows_exit() { text } else { together_again(&text) })
    }

    /// Returns how a handler is translated.
    pub(crate) fn options(&self, handler: usize, architecture: u32, table: TableAt) -> Options {
        let (first_site, sites) = self.own_sites[handler].clone();
        Options { first_site, sites, allow_exit: self.origin.allows_exit(), architecture, table, ..Options::default() }
    }
}

/// Returns a word of which nothing is known now.
fn unknown(word: Word) -> Word {
    match word {
        Word::Constant(value) => Word::Statements(format!("mov.b64 {{d}}, {value};")),
        other => other,
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn symbols_are_those_that_the_collector_sets() {
        use xputrace_device::layout::VARIABLE;
        use xputrace_wire::device::{BLOCK_VARIABLE, GLOBALS_VARIABLE};
        assert_eq!((VARIABLE, xputrace_ptx::GLOBALS), (BLOCK_VARIABLE, GLOBALS_VARIABLE));
    }
}

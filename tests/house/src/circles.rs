//! Circles of files: each of them uses all others, at least through others.

use crate::edges::{Edges, edges};
use crate::modules::Crate;
use std::collections::BTreeSet;

/// A circle of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circle {
    /// Their paths, sorted.
    pub files: Vec<String>,
    pub ties: Vec<Tie>,
}

/// A file of a circle that uses another one of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    pub from: String,
    pub to: String,
    /// The items that it names.
    pub names: Vec<String>,
}

/// Returns a crate's circles of more than `most` files, the largest first.
pub fn circles(of: &Crate, most: usize) -> Vec<Circle> {
    let edges = edges(of);
    let mut targets = vec![Vec::new(); of.files.len()];
    for (from, to) in edges.keys() {
        targets[*from].push(*to);
    }
    let large = components(&targets).into_iter().filter(|it| it.len() > most);
    let mut circles: Vec<_> = large.map(|it| circle(of, &it, &edges)).collect();
    circles.sort_by(|a, b| b.files.len().cmp(&a.files.len()).then_with(|| a.files.cmp(&b.files)));
    circles
}

fn circle(of: &Crate, members: &BTreeSet<usize>, edges: &Edges) -> Circle {
    let path = |file: &usize| of.files[*file].path.clone();
    let mut files: Vec<_> = members.iter().map(path).collect();
    files.sort();
    let mut ties = Vec::new();
    for ((from, to), names) in edges {
        if members.contains(from) && members.contains(to) {
            ties.push(Tie { from: path(from), to: path(to), names: names.iter().cloned().collect() });
        }
    }
    ties.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
    Circle { files, ties }
}

/// Returns the strongly connected components of a graph, given as the targets of each node (Tarjan's way).
fn components(targets: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let mut search =
        Search { targets, lowest: vec![None; targets.len()], next: 0, stack: Vec::new(), found: Vec::new() };
    for node in 0..targets.len() {
        if search.lowest[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'a> {
    targets: &'a [Vec<usize>],
    /// The earliest node on the stack that a node leads to, as far as known; none for a node not seen yet.
    lowest: Vec<Option<usize>>,
    next: usize,
    stack: Vec<usize>,
    found: Vec<BTreeSet<usize>>,
}

impl Search<'_> {
    /// Visits a node that wasn't seen yet, and returns the earliest that it leads to.
    fn visit(&mut self, node: usize) -> usize {
        let own = self.next;
        self.next += 1;
        self.lowest[node] = Some(own);
        self.stack.push(node);
        let mut lowest = own;
        for &target in &self.targets[node] {
            match self.lowest[target] {
                None => lowest = lowest.min(self.visit(target)),
                Some(its) if self.stack.contains(&target) => lowest = lowest.min(its),
                Some(_) => {}
            }
        }
        self.lowest[node] = Some(lowest);
        if lowest == own {
            let first = self.stack.iter().position(|it| *it == node).unwrap_or(0);
            self.found.push(self.stack.split_off(first).into_iter().collect());
        }
        lowest
    }
}

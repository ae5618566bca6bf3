//! A batch's slots, sorted by expert: each expert's weights are then read once, however many rows it has.

use std::ops::Range;

use crate::compute::{BankError, ExpertBatch};
use crate::ids::ExpertRange;

/// Slots in the order they are computed. A slot's *position* is its place in that order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// `(expert within the range, slot in the batch, row)`, ascending.
    slots: Vec<(u32, u32, u32)>,
    groups: Vec<Group>,
    /// Row of each position.
    rows: Vec<u32>,
    /// Position of each slot of the batch.
    positions: Vec<u32>,
    /// 0, 1, 2 …
    counting: Vec<u32>,
    /// First slot of each row, and one past the last row's.
    first: Vec<u32>,
}

/// Positions that one expert has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Within the range.
    pub(super) expert: usize,
    first: usize,
    len: usize,
}

impl Group {
    /// Its positions.
    pub(super) const fn positions(&self) -> Range<usize> {
        self.first..self.first + self.len
    }

    /// How many.
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl Order {
    /// Sorts the slots of a batch that [`ExpertBatch::check`] has passed.
    pub(super) fn arrange(&mut self, batch: &ExpertBatch<'_>, range: ExpertRange) -> Result<(), BankError> {
        self.slots.clear();
        self.first.clear();
        let mut slot = 0_u32;
        for (row, &count) in (0_u32..).zip(batch.counts) {
            self.first.push(slot);
            for &expert in &batch.experts[slot as usize..][..usize::from(count)] {
                let local = range.local(expert).ok_or(BankError::ForeignExpert { expert, range })?;
                self.slots.push((local as u32, slot, row));
                slot += 1;
            }
        }
        self.first.push(slot);
        self.slots.sort_unstable();

        self.groups.clear();
        self.rows.clear();
        self.positions.clear();
        self.positions.resize(self.slots.len(), 0);
        for (position, &(expert, slot, row)) in self.slots.iter().enumerate() {
            self.rows.push(row);
            self.positions[slot as usize] = position as u32;
            match self.groups.last_mut() {
                Some(group) if group.expert == expert as usize => group.len += 1,
                _ => self.groups.push(Group { expert: expert as usize, first: position, len: 1 }),
            }
        }
        self.counting.extend(self.counting.len() as u32..self.slots.len() as u32);
        Ok(())
    }

    /// One for each expert in use.
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Rows of a group's positions.
    pub(super) fn rows(&self, group: Group) -> &[u32] {
        &self.rows[group.positions()]
    }

    /// A group's positions, as a list.
    pub(super) fn positions(&self, group: Group) -> &[u32] {
        &self.counting[group.positions()]
    }

    /// `(slot, position)` of a row's slots, in slot order.
    pub(super) fn of_row(&self, row: usize) -> impl Iterator<Item = (usize, usize)> {
        let slots = self.first[row] as usize..self.first[row + 1] as usize;
        slots.map(|slot| (slot, self.positions[slot] as usize))
    }

    /// Slots of the batch.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

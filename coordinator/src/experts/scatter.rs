//! Rows and choices, grouped by the shard that holds each expert. A row travels once per shard, whatever its experts.

use laguna_shared::compute::ExpertBatch;
use laguna_shared::ids::ExpertId;

use super::RoutedRows;

/// Per-shard groups of one sparse layer; buffers are reused from layer to layer.
#[derive(Debug, Default)]
pub struct Scatter {
    groups: Vec<Group>,
}

/// What one shard gets.
#[derive(Debug, Default)]
pub struct Group {
    /// Index of each sent row among the layer's rows, ascending.
    pub sources: Vec<u32>,
    counts: Vec<u16>,
    experts: Vec<ExpertId>,
    weights: Vec<f32>,
    rows: Vec<u8>,
}

impl Scatter {
    /// Groups `routed` for `shards` shards; `owners[e]` is the index of the shard that gets expert e's slots.
    ///
    /// Slots keep their order within a row. Fails with the first expert that has no owner.
    pub fn group(
        &mut self,
        routed: &RoutedRows,
        owners: &[u16],
        shards: usize,
    ) -> Result<&[Group], ExpertId> {
        self.groups.resize_with(shards, Group::default);
        self.groups.iter_mut().for_each(Group::clear);
        let width = routed.hidden * routed.activation.size();
        let slots =
            routed.choices.experts.chunks(routed.top_k).zip(routed.choices.weights.chunks(routed.top_k));
        for ((source, row), (experts, weights)) in (0_u32..).zip(routed.rows.chunks(width)).zip(slots) {
            for (&expert, &weight) in experts.iter().zip(weights) {
                let owner = owners.get(usize::from(expert.0)).ok_or(expert)?;
                self.groups[usize::from(*owner)].push(source, row, expert, weight);
            }
        }
        Ok(&self.groups)
    }

    /// The groups made last.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
}

impl Group {
    /// The group as a shard takes it.
    pub fn batch<'a>(&'a self, routed: &RoutedRows) -> ExpertBatch<'a> {
        ExpertBatch {
            layer: routed.layer,
            activation: routed.activation,
            hidden: routed.hidden,
            counts: &self.counts,
            experts: &self.experts,
            weights: &self.weights,
            rows: &self.rows,
        }
    }

    /// Whether no row has an expert in this shard.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    fn clear(&mut self) {
        self.sources.clear();
        self.counts.clear();
        self.experts.clear();
        self.weights.clear();
        self.rows.clear();
    }

    fn push(&mut self, source: u32, row: &[u8], expert: ExpertId, weight: f32) {
        match self.counts.last_mut() {
            Some(count) if self.sources.last() == Some(&source) => *count += 1,
            _ => {
                self.sources.push(source);
                self.counts.push(1);
                self.rows.extend_from_slice(row);
            }
        }
        self.experts.push(expert);
        self.weights.push(weight);
    }
}

#[cfg(test)]
mod tests {
    use laguna_shared::compute::ActivationType;
    use laguna_shared::ids::LayerId;
    use proptest::prelude::*;

    use super::*;
    use crate::experts::gather::Gather;
    use crate::model::router::Choices;

    fn routed(rows: usize, hidden: usize, top_k: usize, experts: Vec<u16>, weights: Vec<f32>) -> RoutedRows {
        let values: Vec<f32> = (0..rows * hidden).map(|i| i as f32).collect();
        RoutedRows {
            layer: LayerId(3),
            activation: ActivationType::F32,
            hidden,
            top_k,
            choices: Choices { experts: experts.into_iter().map(ExpertId).collect(), weights },
            rows: bytemuck::cast_slice(&values).to_vec(),
        }
    }

    #[test]
    fn a_row_travels_once_per_shard() {
        let routed = routed(2, 1, 3, vec![0, 1, 5, 4, 5, 6], vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
        let mut scatter = Scatter::default();
        let groups = scatter.group(&routed, &[0, 0, 0, 0, 1, 1, 1, 1], 3).expect("all owned");
        let (first, second) = (groups[0].batch(&routed), groups[1].batch(&routed));
        assert_eq!((first.counts, first.weights), (&[2][..], &[0.1, 0.2][..]));
        assert_eq!(groups[1].sources, [0, 1]);
        assert_eq!(second.counts, [1, 3]);
        assert_eq!(second.experts, [5, 4, 5, 6].map(ExpertId));
        assert!(groups[2].is_empty());
    }

    #[test]
    fn an_expert_without_owner_is_named() {
        let routed = routed(1, 1, 2, vec![0, 9], vec![1.0, 1.0]);
        assert_eq!(Scatter::default().group(&routed, &[0; 4], 1).err(), Some(ExpertId(9)));
    }

    proptest! {
        /// With experts that return `weight · x`, scatter and gather over any owners is multiplication by the
        /// weights' sum.
        #[test]
        fn scatter_then_gather_loses_nothing(
            rows in 1_usize..9,
            owners in prop::collection::vec(0_u16..4, 16),
            picks in prop::collection::vec((0_u16..16, 1_u8..5), 8 * 3),
        ) {
            let (hidden, top_k) = (3, 3);
            let picks = &picks[..rows * top_k];
            let weights: Vec<f32> = picks.iter().map(|p| f32::from(p.1)).collect();
            let routed = routed(rows, hidden, top_k, picks.iter().map(|p| p.0).collect(), weights.clone());
            let mut scatter = Scatter::default();
            let mut gather = Gather::default();
            gather.start(rows, hidden);
            for group in scatter.group(&routed, &owners, 4).expect("all owned") {
                let batch = group.batch(&routed);
                batch.check(hidden).expect("consistent");
                let x: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(batch.rows);
                let mut slots = batch.weights.iter();
                let partial: Vec<f32> = x
                    .chunks(hidden)
                    .zip(batch.counts)
                    .flat_map(|(row, &count)| {
                        let sum: f32 = slots.by_ref().take(usize::from(count)).sum();
                        row.iter().map(move |v| v * sum).collect::<Vec<_>>()
                    })
                    .collect();
                gather.add(&group.sources, &partial);
            }
            for (row, sums) in gather.sums().chunks(hidden).enumerate() {
                let factor: f32 = weights[row * top_k..(row + 1) * top_k].iter().sum();
                for (column, sum) in sums.iter().enumerate() {
                    prop_assert_eq!(*sum, (row * hidden + column) as f32 * factor);
                }
            }
        }
    }
}

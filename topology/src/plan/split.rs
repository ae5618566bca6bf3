//! How many experts each shard gets, in whole numbers. Knows neither nodes nor bytes: only rooms, counted in experts.

/// Experts a shard has room for; `None` is as many as there are.
pub(super) type Room = Option<u64>;

/// Divides `total` experts among shards, in order, at least one each and none above its room. `None` if impossible.
///
/// All rooms known: in proportion to them, so that every node keeps the same part free. None known: evenly, the
/// first ones larger by one. Some known: evenly too, but a room is a limit, and what it turns away goes to the others.
pub(super) fn sizes(total: u64, rooms: &[Room]) -> Option<Vec<u64>> {
    let shards = rooms.len() as u64;
    if shards == 0 || total < shards || rooms.contains(&Some(0)) {
        return None;
    }
    match rooms.iter().copied().collect::<Option<Vec<u64>>>() {
        Some(rooms) => proportional(total, &rooms),
        None => Some(level(total, rooms)),
    }
}

/// Divides consecutive `gaps` (lengths in experts) among consecutive shards: each gap gets the next one or more of
/// them, so that the fullest shard is as empty as can be. One size a shard, and how many shards each gap got.
pub(super) fn sizes_over_gaps(gaps: &[u64], rooms: &[Room]) -> Option<(Vec<u64>, Vec<usize>)> {
    let shards = rooms.len();
    // best[s]: the way to fill the gaps so far with the first s shards.
    let mut best: Vec<Option<Filling>> = vec![None; shards + 1];
    best[0] = Some(Filling::default());
    for (index, &gap) in gaps.iter().enumerate() {
        let last = index + 1 == gaps.len();
        let mut next = vec![None; shards + 1];
        for (end, slot) in next.iter_mut().enumerate() {
            if last && end != shards {
                continue;
            }
            *slot = (0..end)
                .filter_map(|start| best[start].as_ref()?.with(gap, rooms.get(start..end)?))
                // Of equals the last: earlier gaps then take more shards.
                .reduce(|a, b| if a.load < b.load { a } else { b });
        }
        best = next;
    }
    let filling = best.pop()??;
    Some((filling.sizes, filling.shards_in_gap))
}

/// A way to fill some gaps.
#[derive(Clone, Default)]
struct Filling {
    /// The fullest shard: in parts of its room if all rooms are known, otherwise in experts.
    load: u128,
    sizes: Vec<u64>,
    shards_in_gap: Vec<usize>,
}

impl Filling {
    fn with(&self, gap: u64, rooms: &[Room]) -> Option<Self> {
        let more = sizes(gap, rooms)?;
        let known = rooms.iter().all(Option::is_some);
        let load = |(size, room): (&u64, &Room)| match room {
            Some(room) if known => (u128::from(*size) << 32) / u128::from(*room),
            _ => u128::from(*size),
        };
        let fullest = more.iter().zip(rooms).map(load).max().unwrap_or(0);
        Some(Self {
            load: self.load.max(fullest),
            sizes: [self.sizes.as_slice(), &more].concat(),
            shards_in_gap: [self.shards_in_gap.as_slice(), &[rooms.len()]].concat(),
        })
    }
}

/// One each, the rest in proportion to the rooms that are then left, by largest remainder.
fn proportional(total: u64, rooms: &[u64]) -> Option<Vec<u64>> {
    let rest = u128::from(total - rooms.len() as u64);
    let left: Vec<u128> = rooms.iter().map(|room| u128::from(*room) - 1).collect();
    let sum: u128 = left.iter().sum();
    if sum < rest {
        return None;
    }
    // `total` counts experts and a room is a u64, so no product overflows; without a rest there is nothing to divide.
    let share = |left: u128| if rest == 0 { (0, 0) } else { (rest * left / sum, rest * left % sum) };
    let mut sizes: Vec<u64> = left.iter().map(|left| 1 + share(*left).0 as u64).collect();
    let given: u64 = sizes.iter().sum();
    let mut by_remainder: Vec<usize> = (0..rooms.len()).collect();
    by_remainder.sort_by_key(|index| std::cmp::Reverse(share(left[*index]).1));
    // Fewer are missing than shards have a remainder, and a shard with one has room for one more.
    for &index in by_remainder.iter().take((total - given) as usize) {
        sizes[index] += 1;
    }
    Some(sizes)
}

/// The same for each, except where a room is smaller. At least one room is unknown.
fn level(total: u64, rooms: &[Room]) -> Vec<u64> {
    let mut sizes = vec![0; rooms.len()];
    let mut open: Vec<usize> = (0..rooms.len()).collect();
    let mut rest = total;
    loop {
        let each = rest.div_ceil(open.len() as u64);
        let (full, others): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|index| rooms[**index].is_some_and(|room| room < each));
        if full.is_empty() {
            break;
        }
        for index in full {
            sizes[index] = rooms[index].unwrap_or(0);
            rest -= sizes[index];
        }
        open = others;
    }
    let (each, larger) = (rest / open.len() as u64, rest % open.len() as u64);
    for (place, &index) in open.iter().enumerate() {
        sizes[index] = each + u64::from((place as u64) < larger);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn divides_as_documented() {
        assert_eq!(sizes(256, &[None, None, None]), Some(vec![86, 85, 85]));
        assert_eq!(sizes(256, &[Some(130), Some(186)]), Some(vec![105, 151]));
        assert_eq!(sizes(256, &[Some(100), Some(156)]), Some(vec![100, 156]));
        assert_eq!(sizes(256, &[Some(100), Some(155)]), None);
        assert_eq!(sizes(256, &[Some(40), None, None]), Some(vec![40, 108, 108]));
        assert_eq!(sizes(256, &[Some(400), None]), Some(vec![128, 128]));
        assert_eq!(sizes(3, &[Some(1), Some(1000), Some(1)]), Some(vec![1, 1, 1]));
        assert_eq!(sizes(2, &[None, None, None]), None);
        assert_eq!(sizes(5, &[Some(0), None]), None);
        assert_eq!(sizes(5, &[]), None);
    }

    #[test]
    fn gaps_get_the_shards_they_need() {
        assert_eq!(sizes_over_gaps(&[30, 10], &[None; 4]), Some((vec![10, 10, 10, 10], vec![3, 1])));
        let rooms = [Some(10), Some(10), Some(40)];
        assert_eq!(sizes_over_gaps(&[20, 20], &rooms), Some((vec![10, 10, 20], vec![2, 1])));
        assert_eq!(sizes_over_gaps(&[20, 20, 1, 1], &rooms), None);
        assert_eq!(sizes_over_gaps(&[1, 30], &[None, None]), Some((vec![1, 30], vec![1, 1])));
    }

    proptest! {
        #[test]
        fn complete_and_within_rooms(total in 0u64..3000, rooms in vec(option::weighted(0.7, 0u64..500), 0..12)) {
            let most: Option<u64> = rooms.iter().copied().sum();
            let possible = !rooms.is_empty() && rooms.iter().all(|room| *room != Some(0))
                && total >= rooms.len() as u64 && most.is_none_or(|most| most >= total);
            let sizes = sizes(total, &rooms);
            prop_assert_eq!(sizes.is_some(), possible);
            if let Some(sizes) = sizes {
                prop_assert_eq!(sizes.iter().sum::<u64>(), total);
                for (size, room) in sizes.iter().zip(&rooms) {
                    prop_assert!(*size >= 1 && room.is_none_or(|room| *size <= room));
                }
            }
        }
    }
}

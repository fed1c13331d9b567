//! The nearest known name to a misspelt one.
//!
//! Bounded: a name longer than any of ours is not compared at all.

/// Longer names are not worth comparing.
const MAX_LENGTH: usize = 64;

/// The known name nearest to `name`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_LENGTH {
        return None;
    }
    known
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, changes and swaps of neighbours between two names.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Three rows of the usual table: two before, one before, this one.
    let mut older: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let mut before = None;
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let at =
                |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
            let change = at(&row, j) + usize::from(x != y);
            let mut best = change.min(at(&row, j + 1) + 1).min(at(&next, j) + 1);
            let swapped = j > 0 && before == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&older, j - 1) + 1);
            }
            next.push(best);
        }
        older = std::mem::replace(&mut row, next);
        before = Some(x);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let known = || ["ledger.path", "ledger.witness", "model"].into_iter();
        assert_eq!(nearest("ledger.pth", known()), Some("ledger.path"));
        assert_eq!(nearest("mdoel", known()), Some("model"));
        assert_eq!(nearest("kubernetes", known()), None);
        assert_eq!(nearest(&"m".repeat(65), known()), None);
    }

    #[test]
    fn distances_are_the_usual_ones() {
        for (a, b, wanted) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), wanted, "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn distance_is_symmetric(a in "[a-c]{0,8}", b in "[a-c]{0,8}") {
            prop_assert_eq!(distance(&a, &b), distance(&b, &a));
            prop_assert_eq!(distance(&a, &b) == 0, a == b);
        }
    }
}

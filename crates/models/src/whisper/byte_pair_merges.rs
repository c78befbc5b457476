//! The merges of byte pair encoding, from a vocabulary in which the ID of a token is also the order in which it is merged.

use std::collections::HashMap;

/// The bytes of two tokens that are merged to one.
pub type Merge<'t> = (&'t [u8], &'t [u8]);

/// The two tokens that are merged to each token of more than one byte, in the order of IDs. The time for a token grows with
/// the square of its length.
///
/// # Errors
/// The ID of a token that is not the merge of two others.
pub fn byte_pair_merges(tokens: &[Vec<u8>]) -> Result<Vec<Merge<'_>>, usize> {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (token.as_slice(), rank)).collect();
    let longer = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    let merge = |(rank, token)| match encode(token, &ranks, rank).as_slice() {
        [left, right] => Ok((*left, *right)),
        _ => Err(rank),
    };
    longer.map(|(rank, token)| merge((rank, token.as_slice()))).collect()
}

/// Byte pair encoding of a token with the merges of ranks below `limit`: the pair of the lowest rank is merged first.
fn encode<'t>(token: &'t [u8], ranks: &HashMap<&[u8], usize>, limit: usize) -> Vec<&'t [u8]> {
    // The parts' ends.
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    loop {
        let pairs = ends.windows(3).enumerate().filter_map(|(at, ends)| {
            let pair = token.get(*ends.first()?..*ends.last()?)?;
            Some((*ranks.get(pair)?, at))
        });
        match pairs.filter(|(rank, _)| *rank < limit).min() {
            Some((_, at)) => drop(ends.remove(at + 1)),
            None => break,
        }
    }
    ends.windows(2).filter_map(|ends| token.get(*ends.first()?..*ends.last()?)).collect()
}

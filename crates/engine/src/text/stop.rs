//! Stop strings: found across token boundaries, and removed or kept. Text that may begin one is held back.

#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Keeps the stop string at the end of the text.
    keeps_stop: bool,
    /// Text held back because a stop string may begin in it.
    held: String,
}

impl StopMatcher {
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, keeps_stop: false, held: String::new() }
    }

    /// The same, with the stop string at the end of the text if `keeps_stop`.
    pub fn keeping_stop(self, keeps_stop: bool) -> Self {
        Self { keeps_stop, ..self }
    }

    /// The text that may be emitted now, and the index of the stop string that ended it.
    pub fn push(&mut self, text: &str) -> (String, Option<usize>) {
        self.held.push_str(text);
        if let Some((end, start, index)) = self.first_match() {
            self.held.truncate(if self.keeps_stop { end } else { start });
            return (std::mem::take(&mut self.held), Some(index));
        }
        let keep = self.partial_match_bytes();
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), None)
    }

    /// The text that was held back, at the end of the output.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The end and the start of the match that ends first, so the result does not depend on how the text is chunked, and the
    /// index of its stop string.
    fn first_match(&self) -> Option<(usize, usize, usize)> {
        let matches = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        matches.min()
    }

    /// Bytes of the longest suffix of the held text that is a prefix of a stop string.
    fn partial_match_bytes(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let from = self.held.len().saturating_sub(longest);
        let starts = self.held.char_indices().map(|(start, _)| start).filter(|&start| start >= from);
        let open = |start: &usize| {
            self.held.get(*start..).is_some_and(|end| self.stops.iter().any(|stop| stop.starts_with(end)))
        };
        starts.into_iter().find(open).map_or(0, |start| self.held.len() - start)
    }
}

#[cfg(test)]
mod tests {
    use super::StopMatcher;
    use proptest::prelude::*;

    fn run(stops: &[&str], text: &str, cut: usize) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut output = String::new();
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(cut) {
            let (more, stopped) = matcher.push(&part.iter().collect::<String>());
            output += &more;
            if stopped.is_some() {
                return (output, stopped);
            }
        }
        (output + &matcher.finish(), None)
    }

    #[test]
    fn a_stop_string_is_found_across_chunks_and_removed() {
        for cut in 1..8 {
            assert_eq!(run(&["END"], "abcENxENDy", cut), ("abcENx".to_owned(), Some(0)));
            assert_eq!(run(&["END"], "abcEN", cut), ("abcEN".to_owned(), None));
            assert_eq!(run(&["abc", "b"], "xabc", cut), ("xa".to_owned(), Some(1)));
            assert_eq!(run(&["é!"], "éé!", cut), ("é".to_owned(), Some(0)));
        }
    }

    proptest! {
        #[test]
        fn chunking_does_not_matter(text in "[ab]{0,12}", one in "[ab]{1,4}", two in "[ab]{1,4}", cut in 1usize..5) {
            let stops = [one.as_str(), two.as_str()];
            prop_assert_eq!(run(&stops, &text, cut), run(&stops, &text, 1));
        }
    }
}

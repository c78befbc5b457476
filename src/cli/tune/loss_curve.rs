//! The losses of a training as a chart of characters.

/// Columns and rows of the chart.
const WIDTH: usize = 60;
const HEIGHT: usize = 10;
const TRAINING: char = '•';
const VALIDATION: char = '×';

/// The losses of a training.
#[derive(Clone, Debug, Default)]
pub struct LossCurve {
    /// The training loss of each step.
    steps: Vec<f32>,
    /// Validation losses, and after which step they were measured.
    validations: Vec<(u32, f32)>,
}

impl LossCurve {
    pub fn add_step(&mut self, loss: f32) {
        self.steps.push(loss);
    }

    /// `step`: counted from one.
    pub fn add_validation(&mut self, step: u32, loss: f32) {
        self.validations.push((step, loss));
    }

    /// The training loss of the last step.
    pub fn last_step(&self) -> f32 {
        self.steps.last().copied().unwrap_or_default()
    }

    pub fn last_validation(&self) -> Option<f32> {
        self.validations.last().map(|(_, loss)| *loss)
    }

    /// Lines with the chart: each column has the mean loss of its steps.
    pub fn draw(&self) -> String {
        let count = self.steps.len();
        let means: Vec<f32> = (0..WIDTH).filter_map(|column| self.mean(column)).collect();
        let losses = means.iter().copied().chain(self.validations.iter().map(|(_, loss)| *loss));
        let (low, high) = losses.fold((f32::MAX, f32::MIN), |(low, high), loss| (low.min(loss), high.max(loss)));
        let row = |loss: f32| match high > low {
            true => ((high - loss) / (high - low) * (HEIGHT - 1) as f32).round() as usize,
            false => HEIGHT - 1,
        };
        let mut rows = vec![vec![' '; WIDTH]; HEIGHT];
        let mut mark = |column: usize, loss: f32, mark: char| {
            if let Some(cell) = rows.get_mut(row(loss)).and_then(|row| row.get_mut(column)) {
                *cell = mark;
            }
        };
        means.iter().enumerate().for_each(|(column, mean)| mark(column, *mean, TRAINING));
        for (step, loss) in &self.validations {
            mark((*step as usize * WIDTH / count.max(1)).saturating_sub(1), *loss, VALIDATION);
        }
        let mut text = String::new();
        for (index, row) in rows.iter().enumerate() {
            let label = match index {
                0 => format!("{high:>8.4} ┤"),
                _ if index == HEIGHT - 1 => format!("{low:>8.4} ┤"),
                _ => format!("{:>8} │", ""),
            };
            text += &label;
            text += row.iter().collect::<String>().trim_end();
            text.push('\n');
        }
        let legend = match self.validations.is_empty() {
            true => format!("{TRAINING} training loss"),
            false => format!("{TRAINING} training loss  {VALIDATION} validation loss"),
        };
        text += &format!("{:>8} └{}\n", "", "─".repeat(WIDTH));
        text += &format!("{:>9} {:<width$}{count}\n", "", "1", width = WIDTH - count.to_string().len());
        text += &format!("{:>9} {legend}\n", "");
        text
    }

    /// The mean loss of the steps of a column. With fewer steps than columns, a step has several.
    fn mean(&self, column: usize) -> Option<f32> {
        let first = column * self.steps.len() / WIDTH;
        let end = ((column + 1) * self.steps.len() / WIDTH).max(first + 1);
        let steps = self.steps.get(first..end)?;
        Some(steps.iter().sum::<f32>() / steps.len() as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::{HEIGHT, LossCurve, WIDTH};

    fn curve(losses: impl IntoIterator<Item = f32>) -> LossCurve {
        LossCurve { steps: losses.into_iter().collect(), validations: Vec::new() }
    }

    #[test]
    fn a_falling_loss_is_drawn_from_the_upper_left_to_the_lower_right() {
        let mut curve = curve((0..600).map(|step| 3. - step as f32 / 300.));
        curve.add_validation(300, 2.5);
        curve.add_validation(600, 2.);
        let text = curve.draw();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), HEIGHT + 3);
        assert!(lines[0].starts_with("  2.9850 ┤•••"), "{text}");
        let last = lines[HEIGHT - 1];
        assert!(last.starts_with("  1.0150 ┤") && last.ends_with('•'), "{text}");
        assert_eq!(last.chars().count(), 10 + WIDTH, "{text}");
        let places: Vec<_> = lines.iter().filter_map(|line| line.chars().position(|char| char == '×')).collect();
        assert_eq!(places[..2], [10 + WIDTH / 2 - 1, 10 + WIDTH - 1], "{text}");
        assert!(lines[HEIGHT + 1].ends_with("600") && lines[HEIGHT + 2].contains("validation"), "{text}");
        assert_eq!((curve.last_step(), curve.last_validation()), (3. - 599. / 300., Some(2.)));
    }

    #[test]
    fn few_steps_and_equal_losses_are_drawn() {
        let text = curve([0.5]).draw();
        assert_eq!(text.matches('•').count(), WIDTH + 1, "{text}");
        let text = curve([2., 1.]).draw();
        assert_eq!(text.lines().next().unwrap().matches('•').count(), WIDTH / 2, "{text}");
        assert_eq!(curve([]).draw().lines().count(), HEIGHT + 3);
    }
}

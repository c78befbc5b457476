//! PNDM: Liu et al. 2022, <https://arxiv.org/abs/2202.09778>: a linear multistep method, begun by Runge-Kutta steps
//! or by one step that is taken twice.

use super::fields::{Fields, Result};
use super::guess::Mix;
use super::solver::{Call, Solver, combine, kept_at, kept_or};
use super::times::Times;

/// Guesses that a step goes by.
const ORDER: usize = 4;
/// Calls of a step of Runge and Kutta, and how many such steps there are.
const STAGES: usize = 4;
const BEGINNING: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    runge_kutta: bool,
    /// What is kept beyond the first training step.
    end: f32,
}

impl Settings {
    pub fn read(fields: Fields<'_>, kept: &[f32]) -> Result<Self> {
        let clean = fields.flag("set_alpha_to_one", false)?;
        let end = if clean { 1. } else { kept.first().copied().unwrap_or(1.) };
        Ok(Self { runge_kutta: !fields.flag("skip_prk_steps", false)?, end })
    }

    /// Of each call: `[steps + 1]`, or `[steps + 9]` with Runge-Kutta steps.
    pub fn times(self, times: Times, steps: usize) -> Result<Vec<f64>> {
        let whole = times.whole(steps);
        if self.runge_kutta {
            return begin_by_runge_kutta(&whole, (times.stride(steps) / 2) as f64);
        }
        let second = whole.get(1).copied();
        let (first, rest) = whole.split_at(whole.len().min(1));
        Ok(first.iter().copied().chain(second).chain(rest.iter().copied()).collect())
    }
}

/// Each of the first three steps is seen at its begin, twice half way to the next, and there.
fn begin_by_runge_kutta(whole: &[f64], half: f64) -> Result<Vec<f64>> {
    if whole.len() <= BEGINNING {
        return Err(format!("the settings of the scheduler 'pndm' ask for at least {} steps", BEGINNING + 1));
    }
    let pairs = whole.iter().zip(whole.iter().skip(1)).take(BEGINNING);
    let calls = pairs.flat_map(|(now, next)| [*now, next + half, next + half, *next]);
    Ok(calls.chain(whole.iter().skip(BEGINNING).copied()).collect())
}

pub(super) struct Pndm {
    runge_kutta: bool,
    /// `[calls]`: from where to where a call goes.
    moves: Vec<(Mix, Mix)>,
    /// Calls so far.
    count: usize,
    /// The newest last.
    guesses: Vec<Vec<f32>>,
    /// What the stages of a step come to.
    sum: Vec<f32>,
    /// The sample that a step began with.
    begun: Vec<f32>,
}

impl Pndm {
    /// Of the calls from `begin` on.
    pub fn new(settings: Settings, kept: &[f32], times: &[f64], stride: usize, begin: usize) -> Result<Self> {
        if settings.runge_kutta && begin > 0 {
            return Err("the settings of the scheduler 'pndm' do not let it begin with a picture".into());
        }
        let moves = times.iter().enumerate().map(|(index, time)| {
            let (from, to) = settings.ends(times, index, *time, stride as f64, begin);
            Ok((Mix::preserving(kept_at(kept, from)?), Mix::preserving(kept_or(kept, to, settings.end)?)))
        });
        let moves = moves.skip(begin).collect::<Result<_>>()?;
        let runge_kutta = settings.runge_kutta;
        Ok(Self { runge_kutta, moves, count: 0, guesses: Vec::new(), sum: Vec::new(), begun: Vec::new() })
    }

    /// The guess that the newest ones come to.
    fn extrapolate(&self, shape: &mut [f32]) {
        let weights: &[f64] = match self.guesses.len() {
            0 | 1 => &[1.],
            2 => &[3. / 2., -1. / 2.],
            3 => &[23. / 12., -16. / 12., 5. / 12.],
            _ => &[55. / 24., -59. / 24., 37. / 24., -9. / 24.],
        };
        let newest = self.guesses.iter().rev().map(Vec::as_slice);
        combine(shape, 0., &weights.iter().copied().zip(newest).collect::<Vec<_>>());
    }

    fn remember(&mut self, guess: &[f32]) {
        if self.guesses.len() == ORDER {
            self.guesses.remove(0);
        }
        self.guesses.push(guess.to_vec());
    }

    /// The sample that a step began with.
    fn restore(&self, sample: &mut [f32]) {
        sample.iter_mut().zip(&self.begun).for_each(|(x, begun)| *x = *begun);
    }

    fn stage(&mut self, guess: &mut [f32], sample: &mut [f32]) {
        match self.count % STAGES {
            0 => {
                self.remember(guess);
                self.begun = sample.to_vec();
                self.sum = guess.iter().map(|guess| guess / 6.).collect();
            }
            1 | 2 => combine(&mut self.sum, 1., &[(1. / 3., guess)]),
            _ => combine(guess, 1. / 6., &[(1., &self.sum)]),
        }
        self.restore(sample);
    }

    fn multistep(&mut self, guess: &mut [f32], sample: &mut [f32]) {
        match (self.runge_kutta, self.count) {
            (false, 1) => {
                let first = self.guesses.first().map_or(&[][..], Vec::as_slice);
                combine(guess, 0.5, &[(0.5, first)]);
                self.restore(sample);
            }
            (runge_kutta, count) => {
                self.remember(guess);
                if !runge_kutta && count == 0 {
                    self.begun = sample.to_vec();
                }
                self.extrapolate(guess);
            }
        }
    }
}

impl Settings {
    /// The training steps that a call goes from and to.
    fn ends(self, times: &[f64], index: usize, time: f64, stride: f64, begin: usize) -> (f64, f64) {
        if self.runge_kutta && index < STAGES * BEGINNING {
            let half = if index.is_multiple_of(2) { (stride / 2.).floor() } else { 0. };
            return (times.get(index / STAGES * STAGES).copied().unwrap_or(time), time - half);
        }
        // The second call takes the first step again.
        if !self.runge_kutta && index == begin + 1 { (time + stride, time) } else { (time, time - stride) }
    }
}

impl Solver for Pndm {
    fn step(&mut self, call: &Call<'_>, sample: &mut [f32], _: &mut dyn FnMut(usize) -> Vec<f32>) {
        let Some((from, to)) = self.moves.get(self.count).copied() else { return };
        let mut guess = call.guess.to_vec();
        if self.runge_kutta && self.count < STAGES * BEGINNING {
            self.stage(&mut guess, sample);
        } else {
            self.multistep(&mut guess, sample);
        }
        self.count += 1;
        // Equation 11 of the paper.
        let (kept, kept_next) = (from.signal * from.signal, to.signal * to.signal);
        let below = kept * to.noise + from.signal * from.noise * to.signal;
        let share = ((kept_next - kept) / below) as f32;
        for (x, guess) in sample.iter_mut().zip(guess) {
            let noise = from.noise(call.prediction, guess, *x);
            *x = (to.signal / from.signal) as f32 * *x - share * noise;
        }
    }
}

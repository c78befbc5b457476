//! The devices that run the models.

use super::per_model::PerModel;
use outpost_common::device_choice::DeviceChoice;
use outpost_models::devices::{Selected, select};

/// The device of each model.
pub type Devices = PerModel<Selected>;

impl Devices {
    /// Finds the devices of these choices; one without a model is the default.
    ///
    /// # Errors
    /// For the first one that cannot be used, with the value of the option that names it, the reason and the remedy.
    pub fn select(choices: impl IntoIterator<Item = (Option<String>, DeviceChoice)>) -> Result<Self, String> {
        let PerModel { usual, models } = choices.into_iter().collect::<PerModel<DeviceChoice>>();
        let usual = select(usual).map_err(|reason| format!("{usual}: {reason}"))?;
        let named = models.into_iter().map(|(id, choice)| match select(choice) {
            Ok(selected) => Ok((id, selected)),
            Err(reason) => Err(format!("{id}={choice}: {reason}")),
        });
        Ok(Self { usual, models: named.collect::<Result<_, _>>()? })
    }

    /// What models run on that are not named, such as `the CPU (2 threads, avx512)`.
    pub fn describe_default(&self, threads: usize) -> String {
        self.usual.describe(threads)
    }

    /// What the models run on, one line for the default and one for each model that is named.
    pub fn describe(&self, threads: usize) -> Vec<String> {
        let usual = format!("models run on {}", self.usual.describe_with_reason(threads));
        let named =
            self.models.iter().map(|(id, selected)| format!("{id} runs on {}", selected.describe_with_reason(threads)));
        std::iter::once(usual).chain(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Devices;
    use outpost_common::device_choice::DeviceChoice;

    fn select(usual: DeviceChoice, small: DeviceChoice) -> Result<Devices, String> {
        Devices::select([(None, usual), (Some("small".to_owned()), small)])
    }

    #[test]
    fn a_device_that_cannot_be_used_is_named_with_its_model() {
        let absent = DeviceChoice::Cuda(999);
        assert!(select(DeviceChoice::Auto, DeviceChoice::Candle).is_ok());
        assert!(select(absent, DeviceChoice::Cpu).unwrap_err().starts_with("cuda:999: "));
        assert!(select(DeviceChoice::Cpu, absent).unwrap_err().starts_with("small=cuda:999: "));
    }

    #[test]
    fn the_description_has_a_line_for_each_model_that_is_named() {
        let lines = select(DeviceChoice::Cpu, DeviceChoice::Candle).unwrap().describe(3);
        assert!(lines[0].starts_with("models run on the CPU (3 threads, "), "{lines:?}");
        assert!(lines[1].starts_with("small runs on the CPU") && lines[1].contains("candle"), "{lines:?}");
        assert_eq!(lines.len(), 2);
    }
}

//! The devices that run the models.

use super::per_model::PerModel;
use crate::device_choice::DeviceChoice;
use crate::models::devices::select;

/// The device of each model.
pub type Devices = PerModel<DeviceChoice>;

impl Devices {
    /// Checks that every device can be used.
    ///
    /// # Errors
    /// For the first one that cannot, with the value of the option that names it, the reason and the remedy.
    pub fn check(&self) -> Result<(), String> {
        let named = self.models.iter().map(|(id, choice)| (format!("{id}={choice}"), *choice));
        let all = std::iter::once((self.usual.to_string(), self.usual)).chain(named);
        // The CPU stands in for a GPU that `auto` cannot use.
        for (value, choice) in all.filter(|(_, choice)| *choice != DeviceChoice::Auto) {
            select(choice).map_err(|reason| format!("{value}: {reason}"))?;
        }
        Ok(())
    }

    /// What the models run on, one line for the default and one for each model that is named.
    pub fn describe(&self, threads: usize) -> Vec<String> {
        let text = |choice| match select(choice) {
            Ok(selected) => selected.describe(threads),
            Err(reason) => format!("a device that cannot be used: {reason}"),
        };
        let usual = format!("models run on {}", text(self.usual));
        let named = self.models.iter().map(|(id, choice)| format!("{id} runs on {}", text(*choice)));
        std::iter::once(usual).chain(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Devices;
    use crate::device_choice::DeviceChoice;

    fn devices(usual: DeviceChoice, models: &[(&str, DeviceChoice)]) -> Devices {
        Devices { usual, models: models.iter().map(|(id, choice)| ((*id).to_owned(), *choice)).collect() }
    }

    #[test]
    fn a_model_that_is_not_named_has_the_default() {
        let devices = devices(DeviceChoice::Cuda(1), &[("small", DeviceChoice::Cpu)]);
        assert_eq!((devices.of("small"), devices.of("large")), (DeviceChoice::Cpu, DeviceChoice::Cuda(1)));
    }

    #[test]
    fn a_device_that_cannot_be_used_is_named_with_its_model() {
        let absent = DeviceChoice::Cuda(999);
        assert_eq!(devices(DeviceChoice::Auto, &[("small", DeviceChoice::Candle)]).check(), Ok(()));
        assert!(devices(absent, &[]).check().unwrap_err().starts_with("cuda:999: "));
        assert!(devices(DeviceChoice::Cpu, &[("small", absent)]).check().unwrap_err().starts_with("small=cuda:999: "));
    }

    #[test]
    fn the_description_has_a_line_for_each_model_that_is_named() {
        let lines = devices(DeviceChoice::Cpu, &[("small", DeviceChoice::Candle)]).describe(3);
        assert!(lines[0].starts_with("models run on the CPU (3 threads, "), "{lines:?}");
        assert!(lines[1].starts_with("small runs on the CPU") && lines[1].contains("candle"), "{lines:?}");
        assert_eq!(lines.len(), 2);
    }
}

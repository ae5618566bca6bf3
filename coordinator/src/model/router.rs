//! Which experts each row goes to, and with what weight.
//!
//! The linear runs on MLX in the activation type; scores, selection and weights are f32 on the host, where the
//! choice is needed anyway. Selection uses score + bias, weights use the score alone.

use laguna_shared::config::{RouterConfig, RouterScore};
use laguna_shared::ids::ExpertId;
use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::linear::Linear;
use super::pointwise::softplus;

/// One sparse layer's router.
#[derive(Debug)]
pub struct Router {
    pub(super) linear: Linear,
    pub(super) rules: Selection,
}

/// From logits to choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Score function, softcap, normalisation.
    pub config: RouterConfig,
    /// `e_score_correction_bias`, `[experts]`; zeros where the checkpoint has none.
    pub bias: Vec<f32>,
    /// Experts chosen per row, `1..=experts`.
    pub top_k: usize,
}

/// Chosen experts and their weights, `[rows, top_k]`, ascending by id within a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// Expert ids.
    pub experts: Vec<ExpertId>,
    /// Weights before `moe_routed_scaling_factor`.
    pub weights: Vec<f32>,
}

impl Router {
    /// Logits `[rows, experts]`, f32, lazy.
    pub(super) fn logits(&self, x: &Array) -> Result<Array, Exception> {
        self.linear.forward(x)?.as_dtype(Dtype::Float32)
    }
}

impl Selection {
    /// Chooses experts for each row of `logits`, `[rows, experts]`.
    ///
    /// Equal selection scores go to the lower id. Rows with NaN logits still get `top_k` experts.
    pub fn choose(&self, logits: &[f32]) -> Choices {
        let mut choices = Choices::default();
        self.choose_into(logits, &mut choices);
        choices
    }

    /// [`choose`](Self::choose), in place of what `choices` held.
    pub fn choose_into(&self, logits: &[f32], choices: &mut Choices) {
        choices.experts.clear();
        choices.weights.clear();
        let experts = self.bias.len();
        let mut scores = Vec::with_capacity(experts);
        let mut order: Vec<u16> = Vec::with_capacity(experts);
        for row in logits.chunks_exact(experts) {
            self.score(row, &mut scores);
            let selection = |e: u16| scores[usize::from(e)] + self.bias[usize::from(e)];
            order.clear();
            order.extend(0..experts as u16);
            let better = |a: &u16, b: &u16| selection(*b).total_cmp(&selection(*a)).then(a.cmp(b));
            if self.top_k < experts {
                order.select_nth_unstable_by(self.top_k - 1, better);
                order.truncate(self.top_k);
            }
            order.sort_unstable();
            let sum: f32 = order.iter().map(|&e| scores[usize::from(e)]).sum();
            let divisor = if self.config.norm_topk_prob { sum } else { 1.0 };
            choices.experts.extend(order.iter().map(|&e| ExpertId(e)));
            choices.weights.extend(order.iter().map(|&e| scores[usize::from(e)] / divisor));
        }
    }

    fn score(&self, logits: &[f32], scores: &mut Vec<f32>) {
        let capped = |z: f32| match self.config.logit_softcap {
            Some(cap) => (z / cap).tanh() * cap,
            None => z,
        };
        scores.clear();
        scores.extend(logits.iter().map(|&z| capped(z)));
        match self.config.score {
            RouterScore::Sigmoid => scores.iter_mut().for_each(|z| *z = sigmoid(*z)),
            RouterScore::SqrtSoftplus => scores.iter_mut().for_each(|z| *z = softplus(*z).sqrt()),
            RouterScore::Softmax => softmax(scores),
        }
    }
}

fn sigmoid(z: f32) -> f32 {
    // The form that never overflows, on either side.
    if z >= 0.0 {
        1.0 / (1.0 + (-z).exp())
    } else {
        let e = z.exp();
        e / (1.0 + e)
    }
}

fn softmax(z: &mut [f32]) {
    let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    z.iter_mut().for_each(|z| *z = (*z - max).exp());
    let sum: f32 = z.iter().sum();
    z.iter_mut().for_each(|z| *z /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(score: RouterScore, bias: &[f32], top_k: usize) -> Selection {
        let config = RouterConfig { score, logit_softcap: None, norm_topk_prob: true };
        Selection { config, bias: bias.to_vec(), top_k }
    }

    #[test]
    fn bias_flips_the_choice_but_not_the_weights() {
        let logits = [2.0, 1.0, 0.0, -1.0];
        let plain = selection(RouterScore::Sigmoid, &[0.0; 4], 2).choose(&logits);
        assert_eq!(plain.experts, [ExpertId(0), ExpertId(1)]);
        let biased = selection(RouterScore::Sigmoid, &[-1.0, 0.0, 0.0, 1.0], 2).choose(&logits);
        assert_eq!(biased.experts, [ExpertId(1), ExpertId(3)]);
        // sigmoid(1) and sigmoid(-1) sum to 1, so that normalising leaves them as they are.
        assert!((biased.weights[0] - 0.731_058_6).abs() < 1e-6);
        assert!((biased.weights[1] - 0.268_941_43).abs() < 1e-6);
    }

    #[test]
    fn sqrt_softplus_keeps_its_tail() {
        let mut scores = Vec::new();
        selection(RouterScore::SqrtSoftplus, &[0.0; 3], 1).score(&[-100.0, 0.0, 100.0], &mut scores);
        // ln(1 + e^-100) = e^-100 = 3.78e-44, a subnormal; its root is 1.9451e-22.
        assert!((scores[0] / 1.945_1e-22 - 1.0).abs() < 1e-2, "{}", scores[0]);
        assert!((scores[1] - std::f32::consts::LN_2.sqrt()).abs() < 1e-7);
        assert!((scores[2] - 10.0).abs() < 1e-6);
    }

    #[test]
    fn softcap_bounds_the_logits() {
        let mut rules = selection(RouterScore::Sigmoid, &[0.0; 2], 1);
        rules.config.logit_softcap = Some(1.5);
        let mut scores = Vec::new();
        rules.score(&[100.0, 0.3], &mut scores);
        assert!((scores[0] - 0.817_574_5).abs() < 1e-6, "sigmoid(1.5), got {}", scores[0]);
        assert!((scores[1] - sigmoid((0.3_f32 / 1.5).tanh() * 1.5)).abs() < 1e-7);
    }

    #[test]
    fn raw_scores_where_normalisation_is_off() {
        let mut rules = selection(RouterScore::Sigmoid, &[0.0; 3], 2);
        rules.config.norm_topk_prob = false;
        let choices = rules.choose(&[0.0, 1.0, -3.0]);
        assert_eq!(choices.experts, [ExpertId(0), ExpertId(1)]);
        assert!((choices.weights[0] - 0.5).abs() < 1e-7);
    }

    #[test]
    fn ties_go_to_the_lower_id_and_all_experts_may_be_chosen() {
        let choices = selection(RouterScore::Softmax, &[0.0; 4], 2).choose(&[1.0, 1.0, 1.0, 1.0]);
        assert_eq!(choices.experts, [ExpertId(0), ExpertId(1)]);
        assert_eq!(choices.weights, [0.5, 0.5]);
        assert_eq!(
            selection(RouterScore::Softmax, &[0.0; 4], 4).choose(&[4.0, 3.0, 2.0, 1.0]).experts.len(),
            4
        );
    }

    #[test]
    fn not_a_number_still_routes_somewhere() {
        let choices = selection(RouterScore::Sigmoid, &[0.0; 4], 2).choose(&[f32::NAN; 4]);
        assert_eq!(choices.experts.len(), 2);
    }
}

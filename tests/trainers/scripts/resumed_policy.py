"""stable-baselines3: saves after each rollout, dies at an update, and resumes."""

import os
import signal

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

path, dies_at = os.environ["SAVED"], int(os.environ.get("DIES_AT", 0))


class Line(gymnasium.Env):
    """Episodes of eight steps: a rollout ends with one, so none is to be saved."""

    observation_space = gymnasium.spaces.Box(-8, 8, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place = self.time = 0
        return self.seen(), {}

    def step(self, action):
        self.time += 1
        self.place += 1 if action else -1
        return self.seen(), float(self.place), self.time == 8, False, {}

    def seen(self):
        return np.array([self.place, self.time], np.float32)


environment, first = DummyVecEnv([Line]), 0
if os.path.exists(path + ".zip"):
    model = PPO.load(path, env=environment, device="cpu")
    saved = torch.load(path + ".random", weights_only=False)
    first, updates = saved["rollouts"], saved["updates"]
else:
    model = PPO("MlpPolicy", environment, n_steps=16, batch_size=8, n_epochs=2, seed=0, device="cpu")
    updates = 0
if first:
    torch.set_rng_state(saved["torch"])
    np.random.set_state(saved["numpy"])


def count(*of):
    global updates
    updates += 1
    if updates == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)


model.policy.optimizer.register_step_pre_hook(count)
for rollout in range(first, 5):
    model.learn(16, reset_num_timesteps=rollout == 0)
    model.save(path)
    numbers = {"torch": torch.get_rng_state(), "numpy": np.random.get_state()}
    torch.save({"rollouts": rollout + 1, "updates": updates, **numbers}, path + ".random")
print("parameters", [p.tolist() for p in model.policy.parameters()])

"""Two models with an optimizer each, and two losses for one of them."""

import torch
from torch import nn

torch.manual_seed(0)
netD, netG = nn.Linear(4, 1), nn.Linear(2, 4)
optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-2)
optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
for i in range(4):
    netD.zero_grad()
    errD_real = criterion(netD(torch.randn(8, 4)), torch.ones(8, 1))
    errD_real.backward()
    fake = netG(torch.randn(8, 2))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(8, 1))
    errD_fake.backward()
    optimizerD.step()
    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(8, 1))
    errG.backward()
    optimizerG.step()
    print("step", (errD_real + errD_fake).item(), "D")
    print("step", errG.item(), "G", flush=True)
print("parameters", [p.tolist() for m in (netD, netG) for p in m.parameters()])

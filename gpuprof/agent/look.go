package agent

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Bounds beyond which a figure is a lie; no card of today comes near.
const (
	mostPower = 5e3   // W
	mostPCIe  = 600e3 // MB/s, both directions, where the link isn't known
	slack     = 1.05  // readings at slightly different moments don't add up
)

// stale is after how many periods a figure that counts from the reading before says
// nothing of a job.
const stale = 20

// look is one reading of a GPU.
type look struct {
	at       time.Time
	reading  gpuprof.Reading
	coreFrom string
	lied     gpuprof.Figures // figures that were given and can't be true
	// own is what jobs used by themselves, where processes tell; ownFigures says of
	// which figures.
	own        map[int64]rlcore.Use
	ownFigures gpuprof.Figures
}

// look reads a GPU for the jobs on it. It returns an error where nothing could be
// read, and then of the look only what was a lie, or where the GPU is lost.
func (a *Agent) look(g *gpu, jobs []int64, now time.Time) (look, error) {
	l := look{at: now}
	r := &l.reading
	err := g.figures(&l)
	if errors.Is(err, nvml.ErrLost) {
		return look{}, err
	}
	act, aerr := g.card.Activity()
	if aerr == nil && now.Sub(g.seen) > stale*g.pace.period {
		aerr = errNotYet // it is of the time before the job, most of it
	}
	switch {
	case errors.Is(aerr, nvml.ErrLost):
		return look{}, aerr
	case errors.Is(aerr, nvml.ErrImplausible) || aerr == nil && !fraction(act.SM):
		l.lied |= gpuprof.FigCore
	case aerr == nil:
		r.Core, l.coreFrom = act.SM, gpuprof.CoreGPM
		r.Has |= gpuprof.FigCore
		if r.Has&gpuprof.FigGPU == 0 && fraction(act.Graphics) && g.mig != "" {
			r.GPU = act.Graphics // an instance has no utilisation of its own
			r.Has |= gpuprof.FigGPU
		}
		// A card that can't tell it gives 0.
		both := act.PCIeRx + act.PCIeTx
		g.counts = g.counts || both > 0
		if g.counts && both <= g.mostPCIe() && act.PCIeRx >= 0 && act.PCIeTx >= 0 && g.mig == "" {
			// Over the whole time since the last reading, where the other way is 20 ms.
			l.flow(act.PCIeRx, act.PCIeTx, g.mostPCIe())
		}
	}
	if r.Has&gpuprof.FigPCIe == 0 {
		perr := g.pcie(&l)
		if errors.Is(perr, nvml.ErrLost) {
			return look{}, perr
		}
		err = failures(err, perr)
	}
	a.processes(g, jobs, &l)
	if r.Has&gpuprof.FigCore == 0 && r.Has&gpuprof.FigGPU != 0 && !errors.Is(aerr, errNotYet) {
		r.Core, l.coreFrom = r.GPU, gpuprof.CoreGPU
		r.Has |= gpuprof.FigCore
	}
	g.energy(&l, a.Now)
	g.contradict(&l)
	g.seen = now
	if r.Has == 0 {
		if err == nil {
			err = errors.New("the GPU gives no figure")
		}
		return look{lied: l.lied}, err
	}
	return l, nil
}

// figures reads utilisation, memory and power, each by itself.
func (g *gpu) figures(l *look) error {
	r := &l.reading
	use, _, err1 := g.card.Utilisation()
	l.take(gpuprof.FigGPU, use, &r.GPU, 1, err1)
	mem, err2 := g.card.Memory()
	l.take(gpuprof.FigMem, mem, &r.MemMiB, g.mostMem(), err2)
	w, err3 := g.card.Power()
	if err3 == nil && w == 0 {
		err3 = nvml.ErrImplausible // a card that is on draws something
	}
	l.take(gpuprof.FigPower, w, &r.PowerW, mostPower, err3)
	return failures(err1, err2, err3)
}

// failures joins errors but for those of figures that the card hasn't.
func failures(errs ...error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, nvml.ErrNotSupported) })...)
}

// traffic is PCIe as it was read last.
type traffic struct {
	at     time.Time
	rx, tx float64
	known  bool
	err    error
}

// pcie reads the traffic where performance monitoring doesn't tell it. It takes the
// driver so long that it is read once a period at most; what was read last holds
// until then.
func (g *gpu) pcie(l *look) error {
	t := &g.traffic
	if age := l.at.Sub(t.at); t.at.IsZero() || age < 0 || age >= g.pace.period-g.pace.least() {
		rx, tx, err := g.card.PCIe()
		*t = traffic{at: l.at, rx: rx, tx: tx, err: err}
		if !(rx >= 0 && tx >= 0) {
			rx = math.NaN()
		}
		var both float64
		t.known = l.take(gpuprof.FigPCIe, rx+tx, &both, g.mostPCIe(), err)
	}
	if t.known {
		l.flow(t.rx, t.tx, g.mostPCIe())
	}
	return t.err
}

// flow takes PCIe's two directions over.
func (l *look) flow(rx, tx, most float64) {
	r := &l.reading
	r.PCIeMBps, r.RxMBps, r.TxMBps, r.Directions = min(rx+tx, most), rx, tx, true
	r.Has |= gpuprof.FigPCIe
}

// take takes a figure over into a reading if it can be true.
func (l *look) take(f gpuprof.Figures, v float64, to *float64, most float64, err error) bool {
	switch {
	case errors.Is(err, nvml.ErrImplausible) || err == nil && !(v >= 0 && v <= most*slack):
		l.lied |= f
		return false
	case err != nil:
		return false
	}
	*to = min(v, most)
	l.reading.Has |= f
	return true
}

func fraction(v float64) bool { return v >= 0 && v <= 1 }

func (g *gpu) mostMem() float64 {
	if g.dev.MemMiB > 0 {
		return g.dev.MemMiB
	}
	return 4 << 20 // 4 TiB
}

func (g *gpu) mostPCIe() float64 {
	if g.dev.PCIeMBps > 0 {
		return g.dev.PCIeMBps
	}
	return mostPCIe
}

// energy makes power of a counter of energy. One that falls, or that rises faster
// than a card can draw, is dropped, and what comes is compared with its new value. What
// was read before it may have taken a while (PCIe's counters do): its time is its own.
func (g *gpu) energy(l *look, clock func() time.Time) {
	j, err := g.card.Energy()
	now := clock()
	last, at, had := g.joules, g.joulesAt, g.joulesOK
	g.joules, g.joulesAt, g.joulesOK = j, now, err == nil && j > 0 && !math.IsInf(j, 0)
	switch {
	case errors.Is(err, nvml.ErrImplausible) || err == nil && !g.joulesOK:
		l.lied |= gpuprof.FigPower
	case err != nil || !had || !now.After(at) || now.Sub(at) > stale*g.pace.period:
	default:
		w := (j - last) / now.Sub(at).Seconds()
		// A counter moves in steps: none in a short time isn't a lie.
		if !(w >= 0 && w <= mostPower) {
			l.lied |= gpuprof.FigPower
			g.joulesOK = false
			return
		}
		l.reading.MeanW = w
	}
}

// contradict drops a zero that others belie.
func (g *gpu) contradict(l *look) {
	r := &l.reading
	drop := func(f gpuprof.Figures) {
		if r.Has&f != 0 {
			r.Has &^= f
			l.lied |= f
		}
	}
	const sure = 0.1
	if r.MemMiB == 0 && (r.GPU > sure && r.Has&gpuprof.FigGPU != 0 || r.Core > sure && r.Has&gpuprof.FigCore != 0) {
		drop(gpuprof.FigMem) // no kernel runs without a context
	}
	if r.GPU == 0 && r.Core > sure && l.coreFrom == gpuprof.CoreGPM {
		drop(gpuprof.FigGPU)
	}
	if r.Core == 0 && r.GPU > 0.5 && l.coreFrom == gpuprof.CoreGPM {
		drop(gpuprof.FigCore)
	}
}

// processes tells jobs apart by their processes: memory where each process is some
// job's, core use where the driver measures it by process.
func (a *Agent) processes(g *gpu, jobs []int64, l *look) {
	r := &l.reading
	sms, known := g.sms(l)
	if len(jobs) < 2 {
		// Alone, all that runs there is the job's.
		if known && r.Has&gpuprof.FigCore == 0 {
			for _, sm := range sms {
				r.Core = min(1, r.Core+sm)
			}
			l.coreFrom = gpuprof.CoreProcess
			r.Has |= gpuprof.FigCore
		}
		return
	}
	list, err := g.card.Processes()
	if err != nil || len(list) == 0 {
		return
	}
	own, told := map[int64]rlcore.Use{}, gpuprof.FigMem
	if known {
		told |= gpuprof.FigCore
	}
	for _, p := range list {
		id, server := a.owner(p.PID)
		switch {
		case server && g.dev.MPS.OwnAddresses:
			continue // its clients are listed beside it
		case id == 0:
			return // a server that stands for all its clients, or who knows who
		}
		u := own[id]
		if u.MemMiB += p.MemMiB; !(p.MemMiB >= 0) || u.MemMiB > g.mostMem() {
			told &^= gpuprof.FigMem
		}
		u.Core = min(1, u.Core+sms[p.PID])
		own[id] = u
	}
	l.own, l.ownFigures = own, told
}

// remembered is for how long a process's use holds: the driver measures it once a
// second or oftener.
const remembered = 2 * time.Second

// sms is the SM utilisation of each process of late; false = not known.
func (g *gpu) sms(l *look) (map[int]float64, bool) {
	uses, err := g.card.ProcessUtilisation(g.usesAt)
	if err != nil {
		if errors.Is(err, nvml.ErrImplausible) {
			l.lied |= gpuprof.FigCore
		}
		return nil, false
	}
	newest := map[int]nvml.ProcessUse{}
	for _, u := range uses {
		if !fraction(u.SM) {
			l.lied |= gpuprof.FigCore
			return nil, false
		}
		if last, seen := newest[u.PID]; !seen || u.At.After(last.At) {
			newest[u.PID] = u
		}
		if u.At.After(g.usesAt) && !u.At.After(l.at) {
			g.usesAt = u.At
		}
	}
	if len(newest) > 0 {
		g.uses, g.usesRead = map[int]float64{}, l.at
		for pid, u := range newest {
			g.uses[pid] = u.SM
		}
	}
	if age := l.at.Sub(g.usesRead); age < 0 || age > remembered {
		// Nobody used the GPU, as the driver says too, or this can't be believed.
		g.uses = nil
		return nil, l.reading.Has&gpuprof.FigGPU != 0 && l.reading.GPU < changed
	}
	return g.uses, true
}

package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// DCGM is dcgm-exporter's page of metrics. Of a MIG instance of an A100 NVML gives memory and processes alone, while
// DCGM measures its use by other means: fields 1001 (graphics engine active) and 1002 (SMs active).
type DCGM struct {
	URL string
	Now func() time.Time

	mu      sync.Mutex
	reading bool
	asked   time.Time
	at      time.Time
	uses    map[place]nvml.Activity
	err     error
}

// place is a GPU instance as the page's labels name it: by the GPU's UUID and the instance's number. They name no
// compute instance.
type place struct{ gpu, gi string }

const (
	dcgmEvery = 5 * time.Second // between two readings of the page
	dcgmFresh = time.Minute     // for how long a reading holds: the exporter looks every 30 s by default
	dcgmMost  = 16 << 20        // bytes
)

// activity is the last of a GPU instance, and has the page read again where it is old: readings of GPUs don't wait for
// it. Returns nvml.ErrNotYet, nvml.ErrNotSupported where the page has none of it, or why it couldn't be read.
func (d *DCGM) activity(at place) (nvml.Activity, error) {
	now := d.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reading && now.Sub(d.asked) >= dcgmEvery {
		d.reading, d.asked = true, now
		go d.read()
	}
	use, known := d.uses[at]
	switch fresh := !d.at.IsZero() && now.Sub(d.at) <= dcgmFresh; {
	case !fresh && d.err != nil:
		return use, d.err
	case !fresh:
		return use, nvml.ErrNotYet
	case !known:
		return use, nvml.ErrNotSupported
	case !fraction(use.SM) || !fraction(use.Graphics):
		return use, nvml.ErrImplausible
	}
	return use, nil
}

func (d *DCGM) read() {
	uses, err := d.fetch()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reading, d.err = false, err; err == nil {
		d.at, d.uses = d.Now(), uses
	}
}

func (d *DCGM) fetch() (map[place]nvml.Activity, error) {
	client := http.Client{Timeout: dcgmEvery}
	resp, err := client.Get(d.URL)
	if err != nil {
		return nil, fmt.Errorf("dcgm-exporter: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New("dcgm-exporter: " + resp.Status)
	}
	return dcgmUses(io.LimitReader(resp.Body, dcgmMost))
}

// dcgmUses reads the page: the use of each GPU instance that has both figures.
func dcgmUses(page io.Reader) (map[place]nvml.Activity, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return nil, fmt.Errorf("dcgm-exporter: %w", err)
	}
	values := func(name string) map[place]float64 {
		out := map[place]float64{}
		for _, m := range families[name].GetMetric() {
			at := place{}
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "UUID":
					at.gpu = l.GetValue()
				case "GPU_I_ID":
					at.gi = l.GetValue()
				}
			}
			out[at] = m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
		return out
	}
	busy, out := values("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), map[place]nvml.Activity{}
	for at, sm := range values("DCGM_FI_PROF_SM_ACTIVE") {
		if graphics, both := busy[at]; both && at.gi != "" {
			out[at] = nvml.Activity{SM: sm, Graphics: graphics}
		}
	}
	return out, nil
}

// measured is a MIG instance with the activity that DCGM has of it.
type measured struct {
	Card
	dcgm *DCGM
	at   place
}

func (m *measured) Activity() (nvml.Activity, error) { return m.dcgm.activity(m.at) }

// use is how an instance is read: by NVML, and where NVML gives none of its activity, by DCGM as well. DCGM tells GPU
// instances apart and not their compute instances: of one that has several nothing is known.
func (a *Agent) use(d *nvml.Device, in nvml.Instance, of []nvml.Instance) Card {
	same := 0
	for _, other := range of {
		if other.GPUInstance == in.GPUInstance {
			same++
		}
	}
	if a.DCGM == nil || same != 1 || d.Answers[nvml.GPM] {
		return d
	}
	return &measured{d, a.DCGM, place{d.Parent, strconv.Itoa(in.GPUInstance)}}
}

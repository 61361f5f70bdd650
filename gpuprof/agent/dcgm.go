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

// DCGM reads the metrics page of dcgm-exporter. NVML gives only memory and processes of a MIG instance of an A100; DCGM
// measures its activity: fields 1001 (graphics engine active) and 1002 (SMs active).
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

// place identifies a GPU instance by the page's labels: the GPU's UUID and the instance's number. The labels name no
// compute instance.
type place struct{ gpu, gi string }

const (
	dcgmEvery = 5 * time.Second // between two reads of the page
	dcgmFresh = time.Minute     // validity of a read: the exporter measures every 30 s by default
	dcgmMost  = 16 << 20        // bytes
)

// activity returns the last activity of a GPU instance. An old page is read again in the background. Returns
// nvml.ErrNotYet, nvml.ErrNotSupported if the page lacks the instance, or why the page couldn't be read.
func (d *DCGM) activity(at place) (nvml.Activity, error) {
	now := d.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reading && now.Sub(d.asked) >= dcgmEvery {
		d.reading = true
		d.asked = now
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

// dcgmUses parses the page and returns the use of each GPU instance with both figures.
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
	busy := values("DCGM_FI_PROF_GR_ENGINE_ACTIVE")
	out := map[place]nvml.Activity{}
	for at, sm := range values("DCGM_FI_PROF_SM_ACTIVE") {
		if graphics, both := busy[at]; both && at.gi != "" {
			out[at] = nvml.Activity{SM: sm, Graphics: graphics}
		}
	}
	return out, nil
}

// measured is a MIG instance with activity from DCGM.
type measured struct {
	Device
	dcgm *DCGM
	at   place
}

func (m *measured) Activity() (nvml.Activity, error) { return m.dcgm.activity(m.at) }

// use returns the reader of an instance: NVML or, if NVML gives no activity, NVML and DCGM. DCGM doesn't distinguish
// compute instances, so it can't help with a GPU instance that has several.
func (a *Agent) use(d *nvml.Device, in nvml.Instance, of []nvml.Instance) Device {
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

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Answer is the answer of one of our daemons to a probe.
type Answer struct {
	Silent string        // why there is no answer, or why it can't be read (TLS, a password); "" = it was read
	Sick   string        // the problem that the daemon reports, "" = none
	Ahead  time.Duration // the daemon's clock minus this machine's
	body   []byte
}

// healthy reports whether the daemon answered and reports no problem.
func (a *Answer) healthy() bool { return a.Silent == "" && a.Sick == "" }

// Daemon is the running daemon's answer.
type Daemon struct {
	Answer
	job.Status
}

// gateless reports whether the daemon groups jobs and has no gate.
func (d *Daemon) gateless() bool { return d.Mode == "active" && d.Gate == "" }

// Agent is the answer of a node's agent. nil = unknown.
type Agent struct {
	Answer
	MPS       *bool    // whether the node has nvidia-cuda-mps-control
	NoLimits  *bool    // whether only the driver's age keeps MPS from limiting the memory of its clients
	Hooks     *bool    // whether the settings of the node's hooks are valid
	Modes     []string // compute modes of the node's GPUs
	Cold      bool     // some GPU has persistence mode off
	Uncertain int      // number of Slurm's GPUs that the hooks can't match to a card
}

// AskDaemon requests the status of the bridge's daemon at address.
func AskDaemon(ctx context.Context, client *http.Client, address string) *Daemon {
	d := &Daemon{Answer: get(ctx, client, strings.TrimSuffix(address, "/")+"/v1/status")}
	if d.healthy() && json.Unmarshal(d.body, &d.Status) != nil {
		return &Daemon{Answer: Answer{Silent: "another program answers there"}}
	}
	d.body = nil
	d.Sick = cmp.Or(d.Sick, d.Status.Err)
	return d
}

// probeTimeout is how long an answer may take. Tests set it higher, for loaded machines.
var probeTimeout = 3 * time.Second

const (
	mostProbes = 32       // at a time
	mostAnswer = 64 << 20 // bytes read of an answer
)

// get requests a page of a daemon. An error is reported in Answer.Silent.
func get(ctx context.Context, client *http.Client, address string) (a Answer) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Answer{Silent: err.Error()}
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{Silent: Cause(err)}
	}
	defer resp.Body.Close()
	// The header is truncated to whole seconds: half a second is the best guess of the rest.
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		took := time.Since(start)
		a.Ahead = date.Add(500 * time.Millisecond).Sub(start.Add(took / 2))
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	text := strings.Join(strings.Fields(string(a.body[:min(len(a.body), 300)])), " ")
	switch {
	case err != nil:
		a.Silent = Cause(err)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		a.Silent = "it requires a password"
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "HTTPS"):
		a.Silent = "it requires TLS"
	case resp.StatusCode != http.StatusOK:
		a.Sick = cmp.Or(text, resp.Status)
	}
	return a
}

// Cause returns the innermost error of an error of net/http, without the address.
func Cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// AskAgents requests the state of each GPU node's agent. pattern is their address, e.g. "http://{node}:9798".
func AskAgents(ctx context.Context, client *http.Client, pattern string, nodes []text.Node) map[string]Agent {
	out := make(map[string]Agent, len(nodes))
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(mostProbes)
	for i := range nodes {
		n := &nodes[i]
		if n.GPUs == 0 || n.Asleep {
			continue
		}
		addr := cmp.Or(n.Addr, n.Name)
		if strings.Contains(addr, ":") && !strings.HasPrefix(addr, "[") {
			addr = "[" + addr + "]"
		}
		all.Go(func() error {
			agent := askAgent(ctx, client, strings.TrimSuffix(strings.ReplaceAll(pattern, "{node}", addr), "/"))
			mu.Lock()
			defer mu.Unlock()
			out[n.Name] = agent
			return nil
		})
	}
	_ = all.Wait() // no function returns an error
	return out
}

func askAgent(ctx context.Context, client *http.Client, address string) Agent {
	out := Agent{Answer: get(ctx, client, address+"/-/healthy")}
	out.body = nil
	if out.Silent != "" {
		return out
	}
	metrics := get(ctx, client, address+"/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics.body))
	if !metrics.healthy() || err != nil {
		return out
	}
	out.MPS = flag(families["gpuprof_mps_control_present"])
	out.Hooks = flag(families["gpuprof_hook_settings_ok"])
	out.NoLimits = flag(families["gpuprof_mps_memory_limit_missing"])
	for _, m := range families["gpuprof_compute_mode"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "mode" {
				out.Modes = append(out.Modes, l.GetValue())
			}
		}
	}
	for _, m := range families["gpuprof_persistence_mode"].GetMetric() {
		out.Cold = out.Cold || m.GetGauge().GetValue() == 0
	}
	for _, m := range families["gpuprof_gpus_uncertain"].GetMetric() {
		out.Uncertain += int(m.GetGauge().GetValue())
	}
	return out
}

// flag returns the value of a gauge that is 0 or 1, nil if the gauge is missing.
func flag(f *dto.MetricFamily) *bool {
	if len(f.GetMetric()) != 1 || f.Metric[0].Gauge == nil {
		return nil
	}
	set := f.Metric[0].Gauge.GetValue() != 0
	return &set
}

// TryCredential makes a credential and reads it back. It returns the error's text, "" = it works.
func TryCredential(ctx context.Context, m credential.Method) string {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cred, err := m.Encode(ctx, "slurmbridge doctor")
	if err == nil {
		_, err = m.Decode(ctx, cred)
	}
	if err != nil {
		return strings.Join(strings.Fields(err.Error()), " ")
	}
	return ""
}

// UnitUser returns the service's user, from `systemctl show -p LoadState,User`; "" if the unit isn't loaded.
func UnitUser(properties string) string {
	values := map[string]string{}
	for line := range strings.Lines(properties) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	if values["LoadState"] != "loaded" {
		return ""
	}
	return cmp.Or(values["User"], "root")
}

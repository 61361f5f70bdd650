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

// Answer is whether a daemon of ours answers, and well.
type Answer struct {
	Silent string        // why there is no answer, or why it can't be read (TLS, a password); "" = it can
	Sick   string        // what it says is wrong with it, "" = nothing
	Ahead  time.Duration // its clock less this machine's
	body   []byte
}

// speaks reports whether the answer can be read and says that all is well.
func (a *Answer) speaks() bool { return a.Silent == "" && a.Sick == "" }

// Daemon is what the running daemon said of itself.
type Daemon struct {
	Answer
	job.Status
}

// gateless reports whether the daemon groups jobs and has no gate.
func (d *Daemon) gateless() bool { return d.Mode == "active" && d.Gate == "" }

// Agent is what a node's agent said.
type Agent struct {
	Answer
	MPS       *bool    // whether the node has nvidia-cuda-mps-control; nil = not known
	NoLimits  *bool    // whether its driver is too old to hold MPS clients to a part of the memory of a card that could
	Hooks     *bool    // whether the settings of the node's hooks make sense
	Modes     []string // compute modes of the node's GPUs
	Cold      bool     // one of its GPUs is without persistence mode
	Uncertain int      // how many of Slurm's GPUs the hooks don't know
}

// AskDaemon requests the state of the bridge's daemon at this address.
func AskDaemon(ctx context.Context, client *http.Client, address string) *Daemon {
	d := &Daemon{Answer: get(ctx, client, strings.TrimSuffix(address, "/")+"/v1/status")}
	if d.speaks() && json.Unmarshal(d.body, &d.Status) != nil {
		return &Daemon{Answer: Answer{Silent: "another program answers there"}}
	}
	d.body, d.Sick = nil, cmp.Or(d.Sick, d.Status.Err)
	return d
}

// probeTimeout is how long an answer may take. Tests, which wait for no machine, give more.
var probeTimeout = 3 * time.Second

// Bounds on asking daemons.
const (
	mostProbes = 32 // at a time
	mostAnswer = 64 << 20
)

// get requests a daemon's page. It never fails: no answer is a result, too.
func get(ctx context.Context, client *http.Client, address string) (a Answer) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return Answer{Silent: err.Error()}
	}
	asked := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{Silent: Cause(err)}
	}
	defer resp.Body.Close()
	// The header has whole seconds, cut off: half of one is the best guess.
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		took := time.Since(asked)
		a.Ahead = date.Add(500 * time.Millisecond).Sub(asked.Add(took / 2))
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	text := strings.Join(strings.Fields(string(a.body[:min(len(a.body), 300)])), " ")
	switch {
	case err != nil:
		a.Silent = Cause(err)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		a.Silent = "it wants a password"
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "HTTPS"):
		a.Silent = "it wants TLS"
	case resp.StatusCode != http.StatusOK:
		a.Sick = cmp.Or(text, resp.Status)
	}
	return a
}

// Cause is what is at the bottom of an error of net/http, without the address.
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

// AskAgents requests the state of each node's agent; pattern is their address with {node} in the
// place of the node's, e.g. "http://{node}:9798".
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
	_ = all.Wait() // none fails
	return out
}

// askAgent requests one agent's state and reads its metrics of the node's hooks.
func askAgent(ctx context.Context, client *http.Client, address string) Agent {
	out := Agent{Answer: get(ctx, client, address+"/-/healthy")}
	out.body = nil
	if out.Silent != "" {
		return out
	}
	metrics := get(ctx, client, address+"/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(metrics.body))
	if !metrics.speaks() || err != nil {
		return out // an answer without metrics says nothing
	}
	out.MPS, out.Hooks = flag(families["gpuprof_mps_control_present"]), flag(families["gpuprof_hook_settings_ok"])
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

// flag is what a gauge that is 0 or 1 says, nil = it isn't there.
func flag(f *dto.MetricFamily) *bool {
	if len(f.GetMetric()) != 1 || f.Metric[0].Gauge == nil {
		return nil
	}
	is := f.Metric[0].Gauge.GetValue() != 0
	return &is
}

// TryCredential says what goes wrong with a credential that is made and read here, "" = nothing.
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

// UnitUser is the user that the service runs as, by what `systemctl show -p LoadState,User` says of it; "" = there is
// none.
func UnitUser(properties string) string {
	is := map[string]string{}
	for line := range strings.Lines(properties) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		is[name] = value
	}
	if is["LoadState"] != "loaded" {
		return ""
	}
	return cmp.Or(is["User"], "root")
}

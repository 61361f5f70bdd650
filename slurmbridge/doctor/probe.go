package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Bounds on asking daemons.
const (
	probeTimeout = 3 * time.Second
	mostProbes   = 32 // at a time
	mostAnswer   = 64 << 20
)

// answer is what a daemon of ours said to a request.
type answer struct {
	err    string // why there is no answer, "" = there is one
	locked string // why what it says can't be read: TLS, a password
	sick   string // what it says is wrong with it
	ahead  time.Duration
	body   []byte
}

// get requests a daemon's page. It never fails: no answer is a result, too.
func get(ctx context.Context, client *http.Client, address string) answer {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return answer{err: err.Error()}
	}
	asked := time.Now()
	resp, err := client.Do(req)
	var untrusted *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &untrusted), errors.As(err, &alert), errors.Is(err, http.ErrSchemeMismatch):
		return answer{locked: cause(err)}
	case err != nil:
		return answer{err: cause(err)}
	}
	defer resp.Body.Close()
	a := answer{}
	// The header has whole seconds, cut off: half of one is the best guess.
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		took := time.Since(asked)
		a.ahead = date.Add(500 * time.Millisecond).Sub(asked.Add(took / 2))
	}
	a.body, err = io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	text := strings.Join(strings.Fields(string(a.body[:min(len(a.body), 300)])), " ")
	switch {
	case err != nil:
		a.err = cause(err)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		a.locked = "it wants a password"
	case resp.StatusCode == http.StatusBadRequest && strings.Contains(text, "HTTPS"):
		a.locked = "it wants TLS"
	case resp.StatusCode != http.StatusOK:
		a.sick = resp.Status
		if text != "" {
			a.sick = text
		}
	}
	return a
}

// cause is what is at the bottom of an error of net/http, without the address.
func cause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer within " + probeTimeout.String()
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
	var all sync.WaitGroup
	room := make(chan struct{}, mostProbes)
	for i := range nodes {
		n := &nodes[i]
		if n.GPUCount() == 0 {
			continue
		}
		addr := n.Addr
		if addr == "" {
			addr = n.Name
		}
		if strings.Contains(addr, ":") && !strings.HasPrefix(addr, "[") {
			addr = "[" + addr + "]"
		}
		all.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			agent := askAgent(ctx, client, strings.TrimSuffix(strings.ReplaceAll(pattern, "{node}", addr), "/"))
			mu.Lock()
			defer mu.Unlock()
			out[n.Name] = agent
		})
	}
	all.Wait()
	return out
}

// askAgent requests one agent's state and reads its metrics of the node's hooks.
func askAgent(ctx context.Context, client *http.Client, address string) Agent {
	a := get(ctx, client, address+"/-/healthy")
	out := Agent{Err: a.err, Locked: a.locked, Sick: a.sick, Ahead: a.ahead}
	if a.err != "" || a.locked != "" {
		return out
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m := get(ctx, client, address+"/metrics")
	if m.err != "" || m.locked != "" || m.sick != "" {
		return out
	}
	families, err := parser.TextToMetricFamilies(bytes.NewReader(m.body))
	if err != nil {
		return out // an answer without metrics says nothing
	}
	out.MPS, out.Hooks = flag(families["gpuprof_mps_control_present"]), flag(families["gpuprof_hook_settings_ok"])
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

// TryCredential says what goes wrong with a credential that is made and read here, "" =
// nothing.
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

// UnitUser is the user that the service runs as, by the unit and its drop-ins under root ("/"
// but for tests); "" = there is no unit.
func UnitUser(root string) string {
	name, there := "root", false
	// The first of these that exists hides the rest.
	for _, dir := range []string{"etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"} {
		if text := readFile(filepath.Join(root, dir, "slurmbridge.service")); text != nil {
			name, there = unitUser(*text, name), true
			break
		}
	}
	if !there {
		return ""
	}
	for _, dir := range []string{"usr/lib/systemd/system", "run/systemd/system", "etc/systemd/system"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "slurmbridge.service.d", "*.conf"))
		if err != nil {
			continue
		}
		for _, file := range files {
			if text := readFile(file); text != nil {
				name = unitUser(*text, name)
			}
		}
	}
	return name
}

// unitUser is the last User= of a unit's text, before where there is none.
func unitUser(text, before string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "User="); ok {
			if before = strings.TrimSpace(value); before == "" {
				before = "root"
			}
		}
	}
	return before
}

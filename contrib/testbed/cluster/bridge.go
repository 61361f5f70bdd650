package cluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Bridge imports the profiles and starts bridge and agent. It returns when jobs are gated.
func (s *Stack) Bridge(ctx context.Context) error {
	if s.Setup.AuthSlurm {
		if err := s.writeKey(); err != nil {
			return err
		}
	}
	database := s.Path("run", "slurmbridge.db")
	if s.Setup.Disk != nil {
		database = filepath.Join(s.disk(), "slurmbridge.db")
	}
	var err error
	if s.URL, err = s.controller(ctx, BridgeDaemon, "head1", database); err != nil {
		return err
	}
	both := s.URL
	if s.Setup.Standby {
		if err := s.gated(ctx); err != nil { // else the second may be the one that decides
			return err
		}
		if s.StandbyURL, err = s.controller(ctx, "standby", "head2", s.Path("run", "standby.db")); err != nil {
			return err
		}
		both += "," + s.StandbyURL
	}
	if s.agents() {
		if err := errors.Join(s.startAgents(both), s.askForLimits(both)); err != nil {
			return err
		}
	}
	return s.gated(ctx)
}

// gated waits until the bridge is ready and jobs are gated.
func (s *Stack) gated(ctx context.Context) error {
	if !slurmtest.Wait(ctx, time.Minute, func() bool {
		_, err := s.Text("/-/ready")
		return err == nil && s.Gate() != 0
	}) {
		return errors.New("the bridge does not become ready")
	}
	return nil
}

// controller starts a daemon of the bridge on a host with settings of its own, as the user that it runs as, and returns
// its URL.
func (s *Stack) controller(ctx context.Context, name, host, database string) (string, error) {
	port, err := s.FreePort()
	if err != nil {
		return "", err
	}
	settings := slices.Clone(s.Setup.Settings)
	if !s.Setup.Standby {
		host = ""
	}
	// Defaults of a cluster on which nothing but sharers runs.
	for _, usual := range []string{"mode: active", "sharers_only: [" + slurmtest.Partition + "]"} {
		key, _, _ := strings.Cut(usual, " ")
		if !slices.ContainsFunc(settings, func(line string) bool { return strings.HasPrefix(line, key) }) {
			settings = append(settings, usual)
		}
	}
	file := s.Path(name + ".yaml")
	text := fmt.Sprintf("slurm_conf: %s\nrun_dir: %s\ndatabase: %s\nlisten: 127.0.0.1:%s\n%s\npolicy: "+
		"%s\nlease: %s\npoll: 10s\n%s\n",
		s.Conf(), s.Path("run"), database, port, s.proof("slurm"), s.Setup.Policy, s.Setup.Lease,
		strings.Join(settings, "\n"))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return "", err
	}
	if !s.Setup.Cold {
		known := s.Path("profiles.json")
		if err := s.writeProfiles(known); err != nil {
			return "", err
		}
		// The documented command.
		if out, err := s.RunAs(ctx, "slurm", s.Bin("slurmbridge"), "profiles", "import", "--config", file,
			known); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	return "http://127.0.0.1:" + port,
		s.spawn(&Daemon{
			Name: name, program: "slurmbridge", as: "slurm", host: host, Args: []string{"serve", "--config", file},
		})
}

// KeyFile is the file of the key that records travel with: root's on the nodes, slurm's on the
// controller, which here are one machine.
func (s *Stack) KeyFile(owner string) string { return s.Path("keys", owner) }

// proof is the setting by which a daemon of this user proves who it is.
func (s *Stack) proof(owner string) string {
	if s.Setup.AuthSlurm {
		return "key_file: " + s.KeyFile(owner)
	}
	return "munge_socket: " + s.MungeSocket
}

// writeKey writes the key that records travel with.
func (s *Stack) writeKey() (err error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	for _, owner := range []string{"root", "slurm"} {
		install := exec.Command("install", "-D", "--mode=600", "--owner="+owner, "/dev/stdin", s.KeyFile(owner))
		install.Stdin = strings.NewReader(base64.StdEncoding.EncodeToString(key) + "\n")
		err = errors.Join(err, install.Run())
	}
	return err
}

// Agent is the name of the i-th node's agent among the daemons.
func (s *Stack) Agent(i int) string { return of(agent, i) }

// StartAgents starts the nodes' agents where there is no bridge: their records wait.
func (s *Stack) StartAgents() error { return s.startAgents("http://127.0.0.1:9") }

// startAgents starts every node's; they reach the bridge at these addresses, or through the wire at its first.
func (s *Stack) startAgents(controllers string) error {
	if s.Setup.Wired {
		var err error
		if s.Wire, err = newWire(s.URL); err != nil {
			return err
		}
		controllers = s.Wire.URL
	}
	proof := []string{"--munge-socket", s.MungeSocket}
	if s.Setup.AuthSlurm {
		proof = []string{"--key-file", s.KeyFile("root")}
	}
	// Samples as dense as one a GPU second.
	period := max(time.Duration(float64(time.Second)/s.Setup.Scale), 20*time.Millisecond)
	for i := range s.Setup.NodeGPUs {
		if err := s.spawn(&Daemon{Name: s.Agent(i), program: agent, node: i, Args: append([]string{
			"serve", "--run-dir", s.runDir(i), "--spool", s.spool(i), "--controller", controllers,
			"--nvml-library", s.Bin(built.Library), "--period", period.String(), "--node", slurmtest.NodeName(i),
			"--listen", "",
		}, proof...)}); err != nil {
			return err
		}
	}
	return nil
}

// askForLimits lets the nodes' hooks ask the controllers for memory limits.
func (s *Stack) askForLimits(controllers string) error {
	for i := range s.Setup.NodeGPUs {
		text, err := os.ReadFile(s.nodeSettings(i))
		text = fmt.Appendf(text, "controller: %q\n%s\n", controllers, s.proof("root"))
		if err = errors.Join(err, os.WriteFile(s.nodeSettings(i), text, 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// writeProfiles writes what the bridge knows beforehand as the cluster's clock sees it:
// scale GPU seconds pass in one of its seconds.
func (s *Stack) writeProfiles(path string) error {
	known := s.Setup.Profiles
	if known == nil {
		for _, n := range apps.Names() {
			p, _ := apps.ByName(n)
			known = append(known, p)
		}
	}
	var out []*rlcore.Profile
	for _, k := range known {
		p := *k
		p.DurationS, p.PeriodS, p.StepS = p.DurationS/s.Setup.Scale, p.PeriodS/s.Setup.Scale, p.StepS/s.Setup.Scale
		out = append(out, &p)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o644)
}

// Bridged is what the bridge reports of its run.
type Bridged struct {
	Groups      int       // times that jobs were put together
	Skews       []float64 // s between the first and the last start of a group
	AddedDelayS float64   // the longest that the bridge alone kept a job waiting
	Slurm       string    // release
}

// Ask queries the bridge's own account, once the last records are in.
func (s *Stack) Ask(ctx context.Context) (*Bridged, error) {
	var groups []struct {
		Members  []json.RawMessage `json:"members"`
		Kind     string            `json:"kind"`
		SkewS    float64           `json:"skew_s"`
		Complete bool              `json:"complete"`
	}
	slurmtest.Wait(ctx, 5*time.Second, func() bool {
		if err := s.Get("/v1/groups", &groups); err != nil {
			return false
		}
		for _, g := range groups {
			if len(g.Members) > 1 && !g.Complete && g.Kind != "next" {
				return false
			}
		}
		return true
	})
	b := &Bridged{}
	for _, g := range groups {
		// A job that joins running ones makes a group with them.
		if g.Kind == "join" || len(g.Members) > 1 {
			b.Groups++
		}
		if len(g.Members) > 1 && g.Complete {
			b.Skews = append(b.Skews, g.SkewS)
		}
	}
	var st struct {
		Delay float64 `json:"added_delay_max_s"`
		Slurm string  `json:"slurm"`
	}
	if err := s.Get("/v1/status", &st); err != nil {
		return nil, err
	}
	b.AddedDelayS, b.Slurm = st.Delay, st.Slurm
	return b, nil
}

// Get reads JSON from the bridge.
func (s *Stack) Get(path string, into any) error {
	body, err := s.Text(path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(body), into)
}

// Text reads one of the bridge's pages.
func (s *Stack) Text(path string) (string, error) {
	resp, err := http.Get(s.URL + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", path, body)
	}
	return string(body), nil
}

// Metric sums what the bridge's series of this name with these label values show, 0 = there are none.
func (s *Stack) Metric(name string, values ...string) (float64, error) {
	text, err := s.Text("/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		missing := slices.Clone(values)
		for _, l := range m.GetLabel() {
			missing = slices.DeleteFunc(missing, func(v string) bool { return v == l.GetValue() })
		}
		if len(missing) == 0 {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum, nil
}

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Daemon is what the running daemon said of itself.
type Daemon struct {
	Err    string `json:"-"` // why there is no answer, "" = there is one
	Locked string `json:"-"` // why what it says can't be read: TLS, a password
	Mode   string `json:"mode"`
	Policy string `json:"policy"`
	Gate   string `json:"gate"`
	Error  string `json:"error"` // why its last look failed, "" = it didn't
	// GateError is what is wrong with the gate, "" = nothing.
	GateError string `json:"gate_error"`
	// Refused are the changes that Slurm, or a plugin of the site's, has refused in the last day.
	Refused []job.RefusedChanges `json:"refused"`
}

// AskDaemon requests the state of the bridge's daemon at this address.
func AskDaemon(ctx context.Context, client *http.Client, address string) *Daemon {
	a := get(ctx, client, strings.TrimSuffix(address, "/")+"/v1/status")
	d := &Daemon{Err: a.err, Locked: a.locked, Error: a.sick}
	if a.err == "" && a.locked == "" && a.sick == "" {
		if err := json.Unmarshal(a.body, d); err != nil {
			return &Daemon{Err: "another program answers there"}
		}
	}
	return d
}

// gateFix is the advice for Slurm's answer to the gate.
func (e *exam) gateFix() Fix {
	said := strings.ToLower(e.Daemon.GateError)
	switch {
	case strings.Contains(said, "invalid account"):
		return run("sacctmgr add user " + e.User + " account=ACCOUNT")
	case strings.Contains(said, "is not understood"):
		return run("slurmbridge status --json   # misread: the fields", "slurmbridge --version   # is there a newer one for this Slurm? Does a job_submit script change SlurmUser's jobs?")
	case strings.Contains(said, "let go from the gate"):
		return e.letPass()
	case strings.Contains(said, "limit"):
		return run("sacctmgr show assoc user="+e.User, "sacctmgr modify user "+e.User+" set MaxSubmitJobs=-1 MaxJobs=-1")
	}
	return run("journalctl -u slurmbridge -g gate   # Slurm's answer")
}

// letPass lets the bridge's changes pass the site's own script; where there is none, Slurm's answers say more.
func (e *exam) letPass() Fix {
	if e.JobSubmitLua == nil || strings.HasPrefix(*e.JobSubmitLua, luaFirst) {
		return run("journalctl -u slurmbridge -g refused   # each with Slurm's words; plugins here: " + e.Config["JobSubmitPlugins"])
	}
	_, uid, _ := text.User(e.Config["SlurmUser"])
	user := fmt.Sprintf("modify_uid == %d", uid)
	if e.User == "root" {
		user = "modify_uid == 0"
	}
	return Fix{File: e.nextTo("job_submit.lua"), Lines: []string{
		"-- the first line of your slurm_job_modify(job_desc, job_rec, part_list, modify_uid)",
		"if " + user + " then return slurm.SUCCESS end   -- the bridge's changes pass",
	}}
}

// refused: does Slurm take the bridge's changes?
func (e *exam) refused() {
	for i := range e.Daemon.Refused {
		r := &e.Daemon.Refused[i]
		s, why := Warning, "after two refusals a job is left to Slurm: it waits for no other job, and runs without sharing"
		switch {
		case r.Step == job.StepUngate:
			s, why = Error, "after two refusals the gate is opened, for all jobs that wait; if that happens again within an hour, nothing is shared for the next one"
		case r.Step == job.StepExtend:
			why = "sharing makes jobs slower, and without more time some may end at their time limits"
		case r.GivenUp == 0:
			s, why = Note, "each job's change is tried twice; a single refusal does no harm"
		}
		e.add("refused", s, r.String(), why, e.letPass())
	}
}

// daemon: is slurmbridge serve running, and does it do what the settings say?
func (e *exam) daemon() {
	d := e.Daemon
	if d == nil {
		return
	}
	switch {
	case d.Err != "":
		e.add("daemon", Warning, "slurmbridge serve doesn't answer ("+d.Err+")",
			"without it every job runs as it would without slurmbridge",
			run("sed -i 's/^mode:.*/mode: shadow/' "+settingsFile+"   # where it has never run: it then changes nothing yet",
				"systemctl enable --now slurmbridge", "journalctl -u slurmbridge -n 50   # if it doesn't stay up"))
		return
	case d.Locked != "":
		e.add("daemon-locked", Note, "slurmbridge serve answers, and can't be read ("+d.Locked+")",
			"whether it keeps a gate is not known",
			run("slurmbridge doctor --server https://HOST:9797 --client-config FILE   # tls_config, basic_auth: see --help"))
		return
	case d.Error != "":
		e.add("daemon-look", Error, "slurmbridge serve can't do its work: "+d.Error,
			"nothing is shared until it can", run("journalctl -u slurmbridge -n 50"))
		return
	case d.Mode == "active" && d.Gate == "":
		e.add("gate", Error, strings.TrimSuffix("slurmbridge serve is active and has no gate: "+d.GateError, ": "),
			"without the gate job no group is made", e.gateFix())
	case d.GateError != "":
		e.add("gate", Error, "slurmbridge serve has trouble with its gate: "+d.GateError,
			"if the daemon ended now, jobs could wait for a gate that can't open",
			run("slurmbridge open   # lets every waiting job go"))
	}
	e.refused()
	e.when(d.Mode != e.Settings.Mode, "daemon-mode", Warning, fmt.Sprintf("slurmbridge serve runs in mode %s, the settings say %s", d.Mode, e.Settings.Mode),
		"settings are read at the start and at a reload", run("systemctl reload slurmbridge"))
	e.when(d.Policy != e.Settings.Policy, "policy", Warning, fmt.Sprintf("%s decides, the settings say %s", d.Policy, e.Settings.Policy),
		"the model can't be used, or the settings were changed since; sharing continues with a simpler policy",
		run("journalctl -u slurmbridge -g model", "systemctl reload slurmbridge"))
}

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
	var all errgroup.Group
	all.SetLimit(mostProbes)
	for i := range nodes {
		n := &nodes[i]
		if n.GPUCount() == 0 {
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
	out.NoLimits = flag(families["gpuprof_mps_memory_limit_missing"])
	for _, m := range families["gpuprof_compute_mode"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "mode" {
				out.Modes = append(out.Modes, l.GetValue())
			}
		}
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

// whyProof is why nodes have to prove their identity.
const whyProof = "what nodes send is believed only with proof of the sender; until then records wait on the nodes, and nothing is learned"

// proof checks how senders of records prove their identity: with MUNGE if Slurm has it, otherwise
// with a key.
func (e *exam) proof() {
	munge := e.runs("AuthType", "auth/munge")
	switch {
	case e.Key != nil:
		e.key(munge)
	case munge:
		e.munged()
	case e.Munge != nil && *e.Munge == "":
		e.add("munge-besides", Warning, "AuthType is "+e.Config["AuthType"]+", and key_file is not set: records travel with MUNGE",
			"that works where munged runs with one munge.key on the controller and on each node with GPUs; where it doesn't, records wait on the nodes", e.makeKey()...)
	default:
		e.add("key", Error, "AuthType is "+e.Config["AuthType"]+", there is no MUNGE, and key_file is not set", whyProof, e.makeKey()...)
	}
}

func (e *exam) munged() {
	switch {
	case e.MungeSocket != nil && !*e.MungeSocket:
		e.add("munge", Error, "munged's socket is not there", whyProof, run("systemctl enable --now munge"))
	case e.Munge != nil && *e.Munge != "":
		e.add("munge", Error, "MUNGE doesn't work here: "+*e.Munge, whyProof,
			run("munge -n | unmunge", "systemctl restart munge", "journalctl -u munge -n 20"))
	}
}

func (e *exam) key(munge bool) {
	if *e.Key != "" {
		e.add("key", Error, "the key can't be used: "+*e.Key, whyProof, e.makeKey()...)
	}
	switch {
	case munge:
		e.add("key-and-munge", Warning, "key_file is set, although Slurm has MUNGE here (AuthType=auth/munge)",
			"where Slurm hides jobs, slurmbridge why then asks their owners for tokens of auth/slurm, which there are none of",
			setting(`key_file: ""`), Fix{File: filesOfNodes, Lines: []string{`key_file: ""`}})
	case e.Token != nil && *e.Token != "" && text.PrivateJobs(e.Config["PrivateData"]):
		e.add("token", Warning, "Slurm makes or checks no token here: "+*e.Token,
			"Slurm hides other users' jobs (PrivateData), so slurmbridge why needs a proof of the user",
			run("scontrol show config | grep AuthInfo   # without disable_sack", "ls -l /run/slurm/sack.socket /run/slurmctld/sack.socket"))
	}
}

// filesOfNodes are the agent's settings and the hooks'.
const filesOfNodes = "/etc/slurmbridge/gpuprof.yaml and node.yaml on the nodes"

func (e *exam) makeKey() []Fix {
	file := cmp.Or(e.Settings.KeyFile, "/etc/slurmbridge/key")
	return []Fix{
		run("(umask 077; set -C; head -c 32 /dev/urandom | base64 >"+file+")   # unless there is a good one",
			"chown "+cmp.Or(e.User, e.slurmUser())+": "+file+"; chmod 600 "+file,
			"scp "+file+" NODE:"+file+"   # to each node with GPUs, root's and 0600 there, too"),
		setting("key_file: " + file),
		{File: filesOfNodes, Lines: []string{"key_file: " + file}},
	}
}

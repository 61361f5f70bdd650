package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
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
		return Fix{Lines: []string{"sacctmgr add user " + e.User + " account=ACCOUNT"}}
	case strings.Contains(said, "is not understood"):
		return Fix{Lines: []string{"slurmbridge status --json   # misread: the fields", "slurmbridge version   # is there a newer one for this Slurm? Does a job_submit script change SlurmUser's jobs?"}}
	case strings.Contains(said, "limit"):
		return Fix{Lines: []string{"sacctmgr show assoc user=" + e.User, "sacctmgr modify user " + e.User + " set MaxSubmitJobs=-1 MaxJobs=-1"}}
	}
	return Fix{Lines: []string{"journalctl -u slurmbridge -g gate   # Slurm's answer"}}
}

// daemon: is slurmbridge serve running, and does it do what the settings say?
func (e *exam) daemon() {
	d := e.Daemon
	if d == nil {
		return
	}
	reload := Fix{Lines: []string{"systemctl reload slurmbridge"}}
	switch {
	case d.Err != "":
		e.add("daemon", Warning, "slurmbridge serve doesn't answer ("+d.Err+")",
			"without it every job runs as it would without slurmbridge",
			Fix{Lines: []string{"systemctl enable --now slurmbridge", "journalctl -u slurmbridge -n 50   # if it doesn't stay up"}})
		return
	case d.Locked != "":
		e.add("daemon-locked", Note, "slurmbridge serve answers, and can't be read ("+d.Locked+")",
			"whether it keeps a gate is not known",
			Fix{Lines: []string{"slurmbridge doctor --server https://HOST:9797 --client-config FILE   # tls_config, basic_auth: see --help"}})
		return
	case d.Error != "":
		e.add("daemon-look", Error, "slurmbridge serve can't do its work: "+d.Error,
			"nothing is shared until it can", Fix{Lines: []string{"journalctl -u slurmbridge -n 50"}})
		return
	case d.Mode == "active" && d.Gate == "":
		e.add("gate", Error, strings.TrimSuffix("slurmbridge serve is active and has no gate: "+d.GateError, ": "),
			"without the gate job no group is made", e.gateFix())
	case d.GateError != "":
		e.add("gate", Error, "slurmbridge serve has trouble with its gate: "+d.GateError,
			"if the daemon ended now, jobs could wait for a gate that can't open",
			Fix{Lines: []string{"slurmbridge open   # lets every waiting job go"}})
	}
	if e.Settings == nil {
		return
	}
	if d.Mode != e.Settings.Mode {
		e.add("daemon-mode", Warning, fmt.Sprintf("slurmbridge serve runs in mode %s, the settings say %s", d.Mode, e.Settings.Mode),
			"settings are read at the start and at a reload", reload)
	}
	if d.Policy != e.Settings.Policy {
		e.add("policy", Warning, fmt.Sprintf("%s decides, the settings say %s", d.Policy, e.Settings.Policy),
			"the model can't be used, or the settings were changed since; sharing continues with a simpler policy",
			Fix{Lines: []string{"journalctl -u slurmbridge -g model", "systemctl reload slurmbridge"}})
	}
}

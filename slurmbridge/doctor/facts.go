package doctor

import (
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Facts is everything Examine looks at. A field that could not be found out is
// left nil, and nothing is then said of it.
type Facts struct {
	// Config is slurmctld's configuration; nil = it did not answer.
	Config     map[string]string
	Nodes      []text.Node
	Partitions []text.Partition
	// GresConf and JobSubmitLua are the texts of the files next to slurm.conf; nil = there is none.
	// They are read only if ConfDir is set.
	GresConf, JobSubmitLua *string
	// ConfDir is the folder of slurm.conf, where this machine has it.
	ConfDir string
	// Hooks lists the files that Prolog, Epilog, TaskProlog and EpilogSlurmctld
	// come down to on this machine, by setting.
	Hooks map[string][]string
	// Folders says of each folder the bridge writes to whether it is there.
	Folders map[string]bool
	// MungeSocket says whether munged's socket is there.
	MungeSocket *bool
	// Munge is what went wrong with a credential made and read here; "" = nothing,
	// nil = not tried.
	Munge *string
	// Key is what is wrong with the key file for User; "" = nothing, nil = none is set.
	Key *string
	// Token is what went wrong with one of Slurm's own tokens made and read here; "" = nothing,
	// nil = not tried.
	Token *string
	// User is the user that the bridge runs as.
	User string
	// Account says whether User has an account; nil = not known.
	Account *bool
	// Limits are accounting's on what several jobs have together.
	Limits []Limit
	// Requests are the last week's jobs of one GPU, as accounting knows them.
	Requests []Request
	// Daemon is the answer of the running daemon; nil = not requested.
	Daemon *Daemon
	// PackagedLua is the job_submit.lua that is installed with the programs; nil =
	// there is none.
	PackagedLua *string
	// Agents holds the answers of the nodes' agents, by node; nil = not requested.
	Agents map[string]Agent
	// Settings are the bridge's own.
	Settings *config.Config
}

// Agent is what a node's agent said.
type Agent struct {
	Err string // why it can't be reached, "" = it can
	// Locked says why what it says can't be read: TLS, a password; "" = it can.
	Locked string
	Sick   string // what it says is wrong with it, "" = nothing
	// Ahead is the node's clock less this machine's.
	Ahead time.Duration
	// MPS says whether the node has nvidia-cuda-mps-control; nil = not known.
	MPS *bool
	// Hooks says whether the settings of the node's hooks make sense; nil = not known.
	Hooks *bool
}

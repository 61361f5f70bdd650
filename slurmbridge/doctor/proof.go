package doctor

import (
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// whyProof is why nodes have to prove their identity.
const whyProof = "what nodes send is believed only with proof of the sender; until then records wait on the nodes, and nothing is learned"

// proof checks how senders of records prove their identity: with MUNGE if Slurm has it, otherwise
// with a key.
func (e *exam) proof() {
	munge := e.Config["AuthType"] == "auth/munge"
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
		e.add("munge", Error, "munged's socket is not there", whyProof, Fix{Lines: []string{"systemctl enable --now munge"}})
	case e.Munge != nil && *e.Munge != "":
		e.add("munge", Error, "MUNGE doesn't work here: "+*e.Munge, whyProof,
			Fix{Lines: []string{"munge -n | unmunge", "systemctl restart munge", "journalctl -u munge -n 20"}})
	}
}

// key looks at the key that is set.
func (e *exam) key(munge bool) {
	if *e.Key != "" {
		e.add("key", Error, "the key can't be used: "+*e.Key, whyProof, e.makeKey()...)
	}
	switch {
	case munge:
		e.add("key-and-munge", Warning, "key_file is set, although Slurm has MUNGE here (AuthType=auth/munge)",
			"where Slurm hides jobs, slurmbridge why then asks their owners for tokens of auth/slurm, which there are none of",
			Fix{File: "/etc/slurmbridge/slurmbridge.yaml", Lines: []string{`key_file: ""`}},
			Fix{File: filesOfNodes, Lines: []string{`key_file: ""`}})
	case e.Token != nil && *e.Token != "" && text.PrivateJobs(e.Config["PrivateData"]):
		e.add("token", Warning, "Slurm makes or checks no token here: "+*e.Token,
			"Slurm hides other users' jobs (PrivateData), so slurmbridge why needs a proof of the user",
			Fix{Lines: []string{"scontrol show config | grep AuthInfo   # without disable_sack", "ls -l /run/slurm/sack.socket /run/slurmctld/sack.socket"}})
	}
}

// filesOfNodes are the agent's settings and the hooks'.
const filesOfNodes = "/etc/slurmbridge/gpuprof.yaml and node.yaml on the nodes"

// makeKey makes a key and says where it goes.
func (e *exam) makeKey() []Fix {
	file := "/etc/slurmbridge/key"
	if e.Settings != nil && e.Settings.KeyFile != "" {
		file = e.Settings.KeyFile
	}
	user := e.User
	if user == "" {
		user, _, _ = text.User(e.Config["SlurmUser"])
	}
	return []Fix{
		{Lines: []string{
			"(umask 077; set -C; head -c 32 /dev/urandom | base64 >" + file + ")   # unless there is a good one",
			"chown " + user + ": " + file + "; chmod 600 " + file,
			"scp " + file + " NODE:" + file + "   # to each node with GPUs, root's and 0600 there, too",
		}},
		{File: "/etc/slurmbridge/slurmbridge.yaml", Lines: []string{"key_file: " + file}},
		{File: filesOfNodes, Lines: []string{"key_file: " + file}},
	}
}

package main

import "testing"

func TestMerge(t *testing.T) {
	const text = "A=1\nGresTypes=gpu\nNodeName=gpu1 CPUs=8 Gres=gpu:titanxp:1\nNodeName=gpu10 CPUs=9\nPartitionName=a\n"
	for line, want := range map[string]string{
		"GresTypes=gpu,mps": "A=1\nGresTypes=gpu,mps\nNodeName=gpu1 CPUs=8 Gres=gpu:titanxp:1\nNodeName=gpu10 " +
			"CPUs=9\nPartitionName=a\n",
		"B=2   # why": text + "B=2   # why\n",
		"# a comment": text,
		"NodeName=gpu1 … Gres=gpu:titanxp:1,mps:100 X=1": "A=1\nGresTypes=gpu\nNodeName=gpu1 CPUs=8 " +
			"Gres=gpu:titanxp:1,mps:100 X=1\nNodeName=gpu10 CPUs=9\nPartitionName=a\n",
		"PartitionName=b X=1": text + "PartitionName=b X=1\n",
		"Name=mps Count=100":  text + "Name=mps Count=100\n",
	} {
		if got := merge(text, line); got != want {
			t.Errorf("%q makes\n%s\nnot\n%s", line, got, want)
		}
	}
	if got := merge("Name=gpu Type=titanxp File=/dev/nvidia0\n",
		"Name=gpu Type=TYPE File=/dev/nvidia0"); got != "Name=gpu Type=titanxp File=/dev/nvidia0\n" {
		t.Errorf("a placeholder got in: %s", got)
	}
}

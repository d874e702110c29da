// A client of KServe v2 in Go. `client ADDRESS WHAT` prints its results, a line each; errors are
// the numbers of gRPC's codes. Its protobuf code is generated when the tests run.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"farm/kserve"

	"google.golang.org/grpc"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
)

const limit = 60 * time.Second

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func raw(values []float64) []byte {
	data := make([]byte, 8*len(values))
	for i, value := range values {
		binary.LittleEndian.PutUint64(data[8*i:], math.Float64bits(value))
	}
	return data
}

func numbers(data []byte) []float64 {
	values := make([]float64, len(data)/8)
	for i := range values {
		values[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
	}
	return values
}

func request(model string, values []float64) *kserve.ModelInferRequest {
	return &kserve.ModelInferRequest{
		ModelName: model,
		Inputs: []*kserve.ModelInferRequest_InferInputTensor{
			{Name: "x", Datatype: "FP64", Shape: []int64{int64(len(values))}},
		},
		RawInputContents: [][]byte{raw(values)},
	}
}

func infer(client kserve.GRPCInferenceServiceClient, ctx context.Context, model string, values []float64) ([]float64, error) {
	answer, err := client.ModelInfer(ctx, request(model, values))
	if err != nil {
		return nil, err
	}
	return numbers(answer.RawOutputContents[0]), nil
}

func typed(client kserve.GRPCInferenceServiceClient, ctx context.Context) {
	asked := request("twice", []float64{1, 2, 3})
	asked.RawInputContents = nil
	asked.Inputs[0].Contents = &kserve.InferTensorContents{Fp64Contents: []float64{1, 2, 3}}
	answer, err := client.ModelInfer(ctx, asked)
	check(err)
	fmt.Println(answer.Outputs[0].Contents.Fp64Contents)
}

func stream(client kserve.GRPCInferenceServiceClient, ctx context.Context) {
	both, err := client.ModelStreamInfer(ctx)
	check(err)
	check(both.Send(request("count", []float64{3})))
	for i := 0; i < 3; i++ {
		answer, err := both.Recv()
		check(err)
		fmt.Println(numbers(answer.InferResponse.RawOutputContents[0]))
	}
	check(both.Send(request("nobody", []float64{3})))
	answer, err := both.Recv()
	check(err)
	fmt.Println(strings.Contains(answer.ErrorMessage, "nobody"))
	check(both.CloseSend())
	_, err = both.Recv()
	fmt.Println(err == io.EOF)
}

func cancelled(client kserve.GRPCInferenceServiceClient, ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	both, err := client.ModelStreamInfer(ctx)
	check(err)
	check(both.Send(request("count", []float64{1e9})))
	_, err = both.Recv()
	check(err)
	cancel()
	for err == nil {
		_, err = both.Recv()
	}
	fmt.Println(int(status.Code(err)))
}

func many(client kserve.GRPCInferenceServiceClient, ctx context.Context) {
	var group sync.WaitGroup
	var lock sync.Mutex
	right := 0
	for i := 0; i < 16; i++ {
		group.Add(1)
		go func(first float64) {
			defer group.Done()
			for j := 0; j < 20; j++ {
				value := first + float64(j)
				found, err := infer(client, ctx, "twice", []float64{value, 0, 0})
				check(err)
				if found[0] == 2*value {
					lock.Lock()
					right++
					lock.Unlock()
				}
			}
		}(float64(100 * i))
	}
	group.Wait()
	fmt.Println(right)
}

func large(client kserve.GRPCInferenceServiceClient, ctx context.Context) {
	values := make([]float64, 2<<20)
	for i := range values {
		values[i] = float64(i)
	}
	found, err := infer(client, ctx, "same", values)
	check(err)
	same := len(found) == len(values)
	for i := range values {
		same = same && found[i] == values[i]
	}
	fmt.Println(same)
}

func services(connection *grpc.ClientConn, ctx context.Context) {
	both, err := reflection.NewServerReflectionClient(connection).ServerReflectionInfo(ctx)
	check(err)
	check(both.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_ListServices{},
	}))
	answer, err := both.Recv()
	check(err)
	for _, service := range answer.GetListServicesResponse().Service {
		fmt.Println(service.Name)
	}
}

func main() {
	most := 1 << 30
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure(), grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)))
	check(err)
	defer connection.Close()
	client := kserve.NewGRPCInferenceServiceClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch os.Args[2] {
	case "infer":
		found, err := infer(client, ctx, "twice", []float64{1, 2, 3})
		check(err)
		fmt.Println(found)
	case "typed":
		typed(client, ctx)
	case "stream":
		stream(client, ctx)
	case "unknown":
		_, err = infer(client, ctx, "nobody", []float64{1})
		fmt.Println(int(status.Code(err)))
	case "deadline":
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err = infer(client, short, "slow", []float64{1})
		fmt.Println(int(status.Code(err)))
	case "cancel":
		cancelled(client, ctx)
	case "large":
		large(client, ctx)
	case "many":
		many(client, ctx)
	case "services":
		services(connection, ctx)
	}
}

// A client of KServe v2 in C++. `client ADDRESS WHAT` prints its results, a line each; errors are
// the numbers of gRPC's codes. Its protobuf code is generated when the tests run, and included here:
// one unit is compiled faster than three.
#include <atomic>
#include <chrono>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "kserve.grpc.pb.h"

#include "kserve.grpc.pb.cc"
#include "kserve.pb.cc"

using Client = inference::GRPCInferenceService::Stub;
using Numbers = std::vector<double>;

void Check(const grpc::Status &status) {
  if (!status.ok()) {
    std::cerr << status.error_message() << std::endl;
    exit(1);
  }
}

void Require(bool true_one, const char *what) {
  if (!true_one) {
    std::cerr << what << std::endl;
    exit(1);
  }
}

void Within(grpc::ClientContext *context, std::chrono::milliseconds limit) {
  context->set_deadline(std::chrono::system_clock::now() + limit);
}

inference::ModelInferRequest Request(const std::string &model, const Numbers &values) {
  inference::ModelInferRequest request;
  request.set_model_name(model);
  auto *tensor = request.add_inputs();
  tensor->set_name("x");
  tensor->set_datatype("FP64");
  tensor->add_shape(values.size());
  request.add_raw_input_contents(values.data(), values.size() * sizeof(double));
  return request;
}

Numbers Values(const inference::ModelInferResponse &answer) {
  const std::string &raw = answer.raw_output_contents(0);
  Numbers values(raw.size() / sizeof(double));
  std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

void Print(const Numbers &values) {
  for (size_t i = 0; i < values.size(); i++) std::cout << (i ? " " : "") << values[i];
  std::cout << std::endl;
}

grpc::Status Infer(Client *client, const std::string &model, const Numbers &values, Numbers *found,
                   std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  grpc::ClientContext context;
  Within(&context, limit);
  inference::ModelInferResponse answer;
  grpc::Status status = client->ModelInfer(&context, Request(model, values), &answer);
  if (status.ok()) *found = Values(answer);
  return status;
}

void Typed(Client *client) {
  auto request = Request("twice", {1, 2, 3});
  request.clear_raw_input_contents();
  for (double value : {1, 2, 3})
    request.mutable_inputs(0)->mutable_contents()->add_fp64_contents(value);
  grpc::ClientContext context;
  Within(&context, std::chrono::seconds(60));
  inference::ModelInferResponse answer;
  Check(client->ModelInfer(&context, request, &answer));
  const auto &values = answer.outputs(0).contents().fp64_contents();
  Print(Numbers(values.begin(), values.end()));
}

void Stream(Client *client) {
  grpc::ClientContext context;
  Within(&context, std::chrono::seconds(60));
  auto both = client->ModelStreamInfer(&context);
  inference::ModelStreamInferResponse answer;
  Require(both->Write(Request("count", {3})), "the request was not sent");
  for (int i = 0; i < 3; i++) {
    Require(both->Read(&answer), "there is no answer");
    Print(Values(answer.infer_response()));
  }
  Require(both->Write(Request("nobody", {3})), "the request was not sent");
  Require(both->Read(&answer), "there is no error");
  std::cout << (answer.error_message().find("nobody") != std::string::npos) << std::endl;
  both->WritesDone();
  std::cout << !both->Read(&answer) << std::endl;
  Check(both->Finish());
}

void Cancel(Client *client) {
  grpc::ClientContext context;
  Within(&context, std::chrono::seconds(60));
  auto both = client->ModelStreamInfer(&context);
  inference::ModelStreamInferResponse answer;
  Require(both->Write(Request("count", {1e9})), "the request was not sent");
  Require(both->Read(&answer), "there is no answer");
  context.TryCancel();
  while (both->Read(&answer)) {
  }
  std::cout << both->Finish().error_code() << std::endl;
}

void Many(Client *client) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; i++) {
    threads.emplace_back([client, i, &right] {
      for (int j = 0; j < 20; j++) {
        Numbers found;
        Check(Infer(client, "twice", {100.0 * i + j, 0, 0}, &found));
        if (found[0] == 2 * (100.0 * i + j)) right++;
      }
    });
  }
  for (auto &thread : threads) thread.join();
  std::cout << right << std::endl;
}

void Large(Client *client) {
  Numbers values(2 << 20), found;
  for (size_t i = 0; i < values.size(); i++) values[i] = i;
  Check(Infer(client, "same", values, &found));
  std::cout << (found == values) << std::endl;
}

int main(int, char **arguments) {
  grpc::ChannelArguments options;
  options.SetMaxReceiveMessageSize(-1);
  options.SetMaxSendMessageSize(-1);
  auto stub = inference::GRPCInferenceService::NewStub(
      grpc::CreateCustomChannel(arguments[1], grpc::InsecureChannelCredentials(), options));
  Client *client = stub.get();
  std::string what = arguments[2];
  Numbers found;
  if (what == "infer") {
    Check(Infer(client, "twice", {1, 2, 3}, &found));
    Print(found);
  } else if (what == "unknown") {
    std::cout << Infer(client, "nobody", {1}, &found).error_code() << std::endl;
  } else if (what == "deadline") {
    auto limit = std::chrono::milliseconds(100);
    std::cout << Infer(client, "slow", {1}, &found, limit).error_code() << std::endl;
  } else if (what == "typed") {
    Typed(client);
  } else if (what == "stream") {
    Stream(client);
  } else if (what == "cancel") {
    Cancel(client);
  } else if (what == "large") {
    Large(client);
  } else if (what == "many") {
    Many(client);
  }
}
